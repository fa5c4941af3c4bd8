"""What `tfm bench` measures: training, translation, attention. One file each."""
