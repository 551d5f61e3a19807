// Command node is one process of a Shoal cluster: one socket on one machine.
// It runs `shoal node`.
package main

import (
	"os"

	"github.com/shoal-llm/shoal/internal/cli"
)

func main() { os.Exit(cli.Main(append([]string{"node"}, os.Args[1:]...))) }
