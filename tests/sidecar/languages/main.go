// Runs once from examples/clients: main KEY COMMAND. The work is the command: status 4 is the worst failure, 5 is no result, 6 one that cannot be stored.
package main

import (
	"fmt"
	"os"
	"os/exec"
)

func main() {
	result, err := once(os.Args[1], func(fence int64) (any, error) {
		work := exec.Command("sh", "-c", os.Args[2])
		err := work.Run()
		switch work.ProcessState.ExitCode() {
		case 4:
			panic("the work failed")
		case 5:
			return nil, nil
		case 6:
			return make(chan int), nil
		}
		return map[string]any{"for": "Zoë", "fresh": fence > 0}, err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(result))
}
