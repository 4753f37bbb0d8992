from tinker_engine.commands.table import aligned, short, size


def test_columns_are_aligned_and_numbers_end_together():
    assert aligned([("a", "10"), ("bbb", "5")], right=(1,)) == ["a    10", "bbb   5"]
    assert aligned([("a", "10"), ("bbb", "5")]) == ["a    10", "bbb  5"]


def test_numbers_as_people_say_them():
    assert [short(n) for n in (12, 4800, 134_515_008, 7.2e9)] == ["12", "4.8K", "134.5M", "7.2B"]
    assert [size(n) for n in (9_400_000, 1_900_000_000)] == ["9 MB", "1.9 GB"]
