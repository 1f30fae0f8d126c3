-- Returns the clock of the server.
return micros
