// Command node is one process of a Shoal cluster: one socket on one machine.
// It is `shoal node` behind its own door.
package main

import (
	"os"

	"github.com/shoal-llm/shoal/internal/cli"
)

func main() { os.Exit(cli.Main(append([]string{"node"}, os.Args[1:]...))) }
