// Runs once from examples/clients: main KEY COMMAND. The work is the command.
package main

import (
	"fmt"
	"os"
	"os/exec"
)

func main() {
	result, err := once(os.Args[1], func(fence int64) (any, error) {
		err := exec.Command("sh", "-c", os.Args[2]).Run()
		return map[string]any{"for": "Zoë", "fresh": fence > 0}, err
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(string(result))
}
