package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/shoal-llm/shoal/internal/cli/launch"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	cudaprobe "github.com/shoal-llm/shoal/internal/engine/cuda/probe"
	"github.com/shoal-llm/shoal/internal/options"
)

type gpuCmd struct {
	JSON    bool          `name:"json" help:"Print the report as JSON."`
	Timeout time.Duration `default:"1m" help:"Time after which the driver counts as hung."`
	Full    bool          `help:"Compare and measure each kernel by itself, and print a table."`
	Only    string        `help:"With --full, only the steps whose names contain this text."`
	Child   bool          `hidden:"" help:"Load the driver in this process, and print JSON."`
	From    int           `hidden:"" help:"First step of --full in this process."`
	Quick   string        `hidden:"" help:"Only test the card that a node starts on, or with auto the first usable one."`
}

func (*gpuCmd) Help() string {
	return `Shows each NVIDIA card, its driver, the speed of its memory and its bus, and whether the kernels
compute the same bits on it as on the processor. The driver is loaded in a process of its own. The
exit status is 1 if no card can be used.

With --full it compares each kernel with the processor, the functions of one number for all 2^32
inputs, and measures the kernels at the shapes of a model with 8 billion parameters. A kernel that
fails or hangs ends a process, and another process continues with the next step. The steps "times:" give
the kernels of a whole step of that model: each by itself, and how much it adds to the step.

  shoal gpu
  shoal gpu --json
  shoal gpu --full --only speed:
  shoal gpu --full --only times:`
}

func (c *gpuCmd) Run(e *ui.Env) error {
	switch {
	case c.Full && c.Child:
		return c.steps(e.Stdout)
	case c.Full:
		return c.full(e)
	case c.Child && c.Quick != "":
		return json.NewEncoder(e.Stdout).Encode(cudaprobe.Quick(c.Quick))
	case c.Child:
		return json.NewEncoder(e.Stdout).Encode(cudaprobe.Run())
	}
	report, err := launch.ProbeCards(e.Ctx, c.Timeout, "")
	if err != nil {
		return err
	}
	if c.JSON {
		err = ui.PrintJSON(e.Stdout, report)
	} else {
		err = printCards(e.Stdout, report)
	}
	if err == nil && !usable(report) {
		err = ui.Exit(1)
	}
	return err
}

func usable(r cudaprobe.Report) bool {
	for _, d := range r.Devices {
		if d.Problem == "" {
			return true
		}
	}
	return false
}

func printCards(w io.Writer, r cudaprobe.Report) error {
	if r.Problem != "" {
		fmt.Fprintf(w, "no usable card: %s\n", r.Problem)
		return nil
	}
	fmt.Fprintf(w, "driver for CUDA %s\n\n", r.CUDA)
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "DEVICE\tCARD\tCOMPUTE\tMEMORY\tFREE\tREAD\tUPLOAD\tDOWNLOAD\tBITS")
	for _, d := range r.Devices {
		bits := "as the CPU"
		if !d.Bits {
			bits = "not used"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", d.ID, d.Name, d.Capability, options.SizeText(d.Memory), options.SizeText(d.Free),
			rate(d.Read), rate(d.Upload), rate(d.Download), bits)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, d := range r.Devices {
		if d.Problem != "" {
			fmt.Fprintf(w, "\n%s is not used: %s\n", d.ID, d.Problem)
		}
	}
	return nil
}

// rate formats bytes per second.
func rate(r float64) string {
	if r == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f GB/s", r/1e9)
}
