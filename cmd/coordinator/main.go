// Command coordinator is the process with the API, the batcher and the
// placement authority. It runs `shoal coordinator`.
package main

import (
	"os"

	"github.com/shoal-llm/shoal/internal/cli"
)

func main() { os.Exit(cli.Main(append([]string{"coordinator"}, os.Args[1:]...))) }
