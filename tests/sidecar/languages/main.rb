# Runs `once` from examples/clients: main.rb KEY COMMAND. The work is the command.
require "./once"

result = once(ARGV[0]) do |fence|
  system(ARGV[1], exception: true)
  { for: "Zoë", fresh: fence > 0 }
end
puts JSON.generate(result)
