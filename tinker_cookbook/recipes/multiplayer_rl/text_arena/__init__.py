"""Games for two: tic-tac-toe, or any of TextArena, with a tournament and a way to play against a checkpoint."""
