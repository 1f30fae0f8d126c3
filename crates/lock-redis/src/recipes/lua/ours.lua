-- Whether the owner holds the lock alone.
local is_ours = type(value) == 'string' and string.sub(value, 1, #ARGV[1] + 1) == ARGV[1] .. ' '
