"""The playground: one model intact and with chosen heads knocked out, side by side in a browser."""
