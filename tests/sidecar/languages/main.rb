# Runs `once` from examples/clients: main.rb KEY COMMAND. The work is the command: status 4 is the worst failure, 5 is no result, 6 one that cannot be stored.
require "./once"

result = catch(:left) do
  once(ARGV[0]) do |fence|
    system(ARGV[1])
    status = $?.exitstatus
    throw :left, :failed if status == 4
    next if status == 5
    next Float::NAN if status == 6
    raise "the work failed" if status != 0
    { for: "Zoë", fresh: fence > 0 }
  end
end
exit 1 if result == :failed
puts JSON.generate(result)
