// Command shoal serves large language models on a cluster of ordinary machines.
package main

import (
	"os"

	"github.com/shoal-llm/shoal/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
