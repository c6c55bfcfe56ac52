"""Tasks: folders of Endless Terminals, generated ones, and their verification and writing."""
