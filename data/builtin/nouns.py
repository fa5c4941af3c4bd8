"""The nouns and adjectives of the built-in corpus."""

from tfm.data.builtin.forms import Adjective, Gender, Noun

_GENDERS: dict[str, Gender] = {"der": "masculine", "die": "feminine", "das": "neuter"}


def _noun(
    kind: str, english: str, german: str, *, ownable: bool = True, relation: bool = False
) -> Noun:
    """Read "boy boys" and "der Junge Jungen Jungen Jungen".

    The German forms are nominative singular, other singular, plural, dative plural; a noun
    without a plural stops after the singular.
    """
    singular, plural = (english.split() + [""])[:2]
    article, nominative, oblique, german_plural, dative = (german.split() + ["", ""])[:5]
    return Noun(
        kind,
        singular,
        plural,
        _GENDERS[article],
        nominative,
        oblique,
        german_plural,
        dative,
        ownable,
        relation,
    )


PEOPLE = ("adult", "young")
LIVING = ("adult", "young", "animal")
PETS = ("dog", "cat", "rabbit")
SMALL_GOODS = ("text", "thing")

NOUNS = (
    _noun("adult", "man men", "der Mann Mann Männer Männern", ownable=False),
    _noun("adult", "woman women", "die Frau Frau Frauen Frauen", ownable=False),
    _noun("adult", "teacher teachers", "der Lehrer Lehrer Lehrer Lehrern"),
    _noun("adult", "doctor doctors", "der Arzt Arzt Ärzte Ärzten"),
    _noun("adult", "student students", "der Student Studenten Studenten Studenten"),
    _noun("adult", "neighbor neighbors", "der Nachbar Nachbarn Nachbarn Nachbarn"),
    _noun("adult", "father", "der Vater Vater", relation=True),
    _noun("adult", "mother", "die Mutter Mutter", relation=True),
    _noun("adult", "brother brothers", "der Bruder Bruder Brüder Brüdern", relation=True),
    _noun(
        "adult", "sister sisters", "die Schwester Schwester Schwestern Schwestern", relation=True
    ),
    _noun("adult", "friend friends", "der Freund Freund Freunde Freunden"),
    _noun("adult", "aunt aunts", "die Tante Tante Tanten Tanten", relation=True),
    _noun("young", "boy boys", "der Junge Jungen Jungen Jungen", ownable=False),
    _noun("young", "girl girls", "das Mädchen Mädchen Mädchen Mädchen", ownable=False),
    _noun("young", "child children", "das Kind Kind Kinder Kindern"),
    _noun("animal", "dog dogs", "der Hund Hund Hunde Hunden"),
    _noun("animal", "cat cats", "die Katze Katze Katzen Katzen"),
    _noun("animal", "horse horses", "das Pferd Pferd Pferde Pferden"),
    _noun("animal", "rabbit rabbits", "der Hase Hasen Hasen Hasen"),
    _noun("food", "apple apples", "der Apfel Apfel Äpfel Äpfeln"),
    _noun("food", "cake cakes", "der Kuchen Kuchen Kuchen Kuchen"),
    _noun("food", "egg eggs", "das Ei Ei Eier Eiern"),
    _noun("food", "bread", "das Brot Brot"),
    _noun("food", "soup", "die Suppe Suppe"),
    _noun("drink", "milk", "die Milch Milch"),
    _noun("drink", "water", "das Wasser Wasser"),
    _noun("drink", "coffee", "der Kaffee Kaffee"),
    _noun("drink", "tea", "der Tee Tee"),
    _noun("text", "book books", "das Buch Buch Bücher Büchern"),
    _noun("text", "letter letters", "der Brief Brief Briefe Briefen"),
    _noun("text", "newspaper newspapers", "die Zeitung Zeitung Zeitungen Zeitungen"),
    _noun("thing", "key keys", "der Schlüssel Schlüssel Schlüssel Schlüsseln"),
    _noun("thing", "bag bags", "die Tasche Tasche Taschen Taschen"),
    _noun("thing", "ball balls", "der Ball Ball Bälle Bällen"),
    _noun("thing", "picture pictures", "das Bild Bild Bilder Bildern"),
    _noun("thing", "lamp lamps", "die Lampe Lampe Lampen Lampen"),
    _noun("thing", "coat coats", "der Mantel Mantel Mäntel Mänteln"),
    _noun("vehicle", "car cars", "das Auto Auto Autos Autos"),
    _noun("vehicle", "bicycle bicycles", "das Fahrrad Fahrrad Fahrräder Fahrrädern"),
    _noun("transport", "train trains", "der Zug Zug Züge Zügen", ownable=False),
    _noun("opening", "door doors", "die Tür Tür Türen Türen", ownable=False),
    _noun("opening", "window windows", "das Fenster Fenster Fenster Fenstern", ownable=False),
    _noun("furniture", "table tables", "der Tisch Tisch Tische Tischen"),
    _noun("furniture", "chair chairs", "der Stuhl Stuhl Stühle Stühlen"),
    _noun("furniture", "bed beds", "das Bett Bett Betten Betten"),
    _noun("place", "garden gardens", "der Garten Garten Gärten Gärten"),
    _noun("place", "kitchen kitchens", "die Küche Küche Küchen Küchen"),
    _noun("place", "house houses", "das Haus Haus Häuser Häusern"),
    _noun("place", "school schools", "die Schule Schule Schulen Schulen"),
    _noun("place", "city cities", "die Stadt Stadt Städte Städten"),
    _noun("place", "park parks", "der Park Park Parks Parks", ownable=False),
    _noun("place", "shop shops", "der Laden Laden Läden Läden"),
    _noun("place", "station stations", "der Bahnhof Bahnhof Bahnhöfe Bahnhöfen", ownable=False),
)

NOUN = {noun.english: noun for noun in NOUNS}

_GOODS = ("text", "thing", "vehicle", "furniture")

ADJECTIVES = (
    Adjective("old", "alt", "alt", ("adult", "animal", *_GOODS, "place", "transport", "opening")),
    Adjective("young", "jung", "jung", (*PEOPLE, "animal")),
    Adjective("small", "klein", "klein", ("young", "animal", *_GOODS, "place", "opening")),
    Adjective("big", "groß", "groß", ("animal", *_GOODS, "place", "opening", "apple")),
    Adjective("friendly", "freundlich", "freundlich", (*PEOPLE, "dog")),
    Adjective("tired", "müde", "müd", LIVING),
    Adjective("hungry", "hungrig", "hungrig", LIVING),
    Adjective("happy", "glücklich", "glücklich", PEOPLE),
    Adjective("sad", "traurig", "traurig", PEOPLE),
    Adjective("sick", "krank", "krank", LIVING),
    Adjective("new", "neu", "neu", (*_GOODS, "opening", "house", "school", "shop", "kitchen")),
    Adjective("beautiful", "schön", "schön", ("woman", "animal", *_GOODS, "place")),
    Adjective("expensive", "teuer", "teur", (*_GOODS, "food", "drink", "house", "shop")),
    Adjective("cheap", "billig", "billig", (*_GOODS, "food", "drink")),
    Adjective("red", "rot", "rot", ("thing", "vehicle", "furniture", "opening", "apple", "house")),
    Adjective("fresh", "frisch", "frisch", ("food", "milk", "water")),
    Adjective("cold", "kalt", "kalt", ("drink", "soup", "kitchen", "house")),
)

ADJECTIVE = {adjective.english: adjective for adjective in ADJECTIVES}

STATES = tuple(ADJECTIVE[name] for name in ("tired", "hungry", "happy", "sad", "sick"))
QUALITIES = tuple(ADJECTIVE[name] for name in ("new", "old", "beautiful", "expensive", "cheap"))
