package cli

import (
	"fmt"
	"runtime"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/arithmetic"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/rpc"
)

type versionCmd struct{}

// versionFlag is --version, which prints one line. The command prints more.
type versionFlag bool

func (versionCmd) Run(e *ui.Env) error {
	print, err := arithmetic.Fingerprint()
	if err != nil {
		return err
	}
	kernels, err := kernel.Implementation()
	if err != nil {
		return err
	}
	fmt.Fprintf(e.Stdout, "shoal %s %s/%s, wire version %d, arithmetic %s (%s)\n", cluster.Build(), runtime.GOOS,
		runtime.GOARCH, rpc.Version, print, kernels)
	return nil
}
