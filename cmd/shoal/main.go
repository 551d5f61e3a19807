// Command shoal serves large language models on a cluster of ordinary machines.
package main

import (
	"os"

	"shoal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
