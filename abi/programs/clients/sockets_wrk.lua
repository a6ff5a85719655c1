-- Compares each response with the file named by the argument.
wrong, right = 0, 0
local expected
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  expected = file:read("*a")
  file:close()
end

function response(status, headers, body)
  if status == 200 and body == expected then
    right = right + 1
  else
    wrong = wrong + 1
  end
end

function done(summary)
  local sum_right, sum_wrong = 0, 0
  for _, thread in ipairs(threads) do
    sum_right = sum_right + thread:get("right")
    sum_wrong = sum_wrong + thread:get("wrong")
  end
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.timeout
  print(string.format("right %d wrong %d failed %d", sum_right, sum_wrong, failed))
end
