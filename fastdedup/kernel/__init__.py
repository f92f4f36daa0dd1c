"""Operations, their bytes and their queues: what each claim runs through, without counting, logs or files."""
