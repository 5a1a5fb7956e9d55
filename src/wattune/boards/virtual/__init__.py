"""The modelled board: constants (data), time and power model, demand-driven governor, and the board itself."""
