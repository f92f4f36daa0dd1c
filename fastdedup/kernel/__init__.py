"""Operations, their bytes and their queues: the path of each claim, without counting, logs or files."""
