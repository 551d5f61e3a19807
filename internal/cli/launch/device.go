package launch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/cli/ui"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	cudaprobe "github.com/shoal-llm/shoal/internal/engine/cuda/probe"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// ProbeTimeout is the default time after which a driver counts as hung.
const ProbeTimeout = time.Minute

// ProbeCards examines the cards in a child process, which a broken driver may hang or end. A quick
// probe does not measure speeds.
func ProbeCards(ctx context.Context, timeout time.Duration, quick bool) (r cudaprobe.Report, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	args := []string{"gpu", "--child"}
	if quick {
		args = append(args, "--quick")
	}
	child := exec.CommandContext(timed, self, args...)
	child.WaitDelay = time.Second
	var out, complaints bytes.Buffer
	child.Stdout, child.Stderr = &out, &complaints
	err = child.Run()
	switch {
	case ctx.Err() != nil:
		return r, ctx.Err()
	case timed.Err() != nil:
		return r, fmt.Errorf("the driver did not answer within %s; check the card with nvidia-smi", timeout)
	case err == nil:
		err = json.Unmarshal(out.Bytes(), &r)
	}
	if err != nil {
		return r, errors.Join(fmt.Errorf("the process that loads the driver ended: %w", err), TextError(complaints.String()))
	}
	return r, nil
}

// TextError returns the last lines of a process's standard error, or nil.
func TextError(s string) error {
	const most = 2000
	if s = strings.TrimSpace(s); s == "" {
		return nil
	}
	return errors.New(s[max(0, len(s)-most):])
}

// driverFiles are files of a card's driver: on Linux, in a container, under WSL 2. Without them auto means
// the CPU, and no child process probes the card.
var driverFiles = []string{"/dev/nvidiactl", "/dev/dxg"}

// hasDriver reports whether this machine may have a card.
func hasDriver() bool {
	for _, f := range driverFiles {
		if _, err := os.Stat(f); err == nil {
			return true
		}
	}
	return false
}

// cardOf probes the card that a device names, and returns nil for the CPU. auto means cuda:0. why is the
// reason if auto resolves to the CPU.
func cardOf(ctx context.Context, device string) (d *cudaprobe.Device, why string, err error) {
	auto := device == cluster.DeviceAuto
	if device == "" || device == cluster.DeviceCPU || auto && !hasDriver() {
		return nil, "", nil
	}
	id := device
	if auto {
		id = "cuda:0"
	}
	r, err := ProbeCards(ctx, ProbeTimeout, true)
	problem := r.Problem
	for i := range r.Devices {
		if r.Devices[i].ID == id {
			d = &r.Devices[i]
			problem = cmp.Or(problem, d.Problem)
		}
	}
	switch {
	case err != nil:
		problem = err.Error()
	case d == nil && problem == "":
		problem = fmt.Sprintf("the driver finds %s; `shoal gpu` lists them", ui.Plural(len(r.Devices), "card"))
	}
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	if problem == "" {
		return d, "", nil
	}
	if auto {
		return nil, problem, nil
	}
	return nil, "", fmt.Errorf("--device %s: %s", device, problem)
}

// noCard names the first option of up that a card does not serve, or "".
func (c *Up) noCard() string {
	for _, x := range []struct {
		set  bool
		flag string
	}{
		{c.Nodes > 1 && !c.defaulted, "--nodes"}, {c.Draft != "", "--draft"}, {c.SwiftKV != "", "--swiftkv"}, {len(c.Serve.LoRA) > 0 || c.Serve.LoRADir != "", "--lora"},
		{c.Serve.Policy != "" && c.Serve.Policy != "full", "--policy"},
	} {
		if x.set {
			return x.flag
		}
	}
	return ""
}

// chooseCard determines whether a card computes, before the model is known.
func (c *Up) chooseCard(ctx context.Context, log *slog.Logger) error {
	switch flag := c.noCard(); {
	case flag != "" && c.Device == cluster.DeviceAuto:
		c.Device = cluster.DeviceCPU
	case flag == "--nodes" && strings.HasPrefix(c.Device, "cuda:"):
		return fmt.Errorf("--device %s with --nodes %d: a card serves the whole model: use --nodes 1", c.Device, c.Nodes)
	case flag != "" && strings.HasPrefix(c.Device, "cuda:"):
		return fmt.Errorf("--device %s with %s: that is not computed on a card: use --device cpu", c.Device, flag)
	}
	d, why, err := cardOf(ctx, c.Device)
	if err != nil {
		return err
	}
	if why != "" {
		log.Info("the CPU computes", "reason", why)
	}
	if c.card, c.auto = d, c.Device == cluster.DeviceAuto; d == nil {
		c.Device = cluster.DeviceCPU
	}
	return nil
}

// divideCard sets the memory of the caches on the card. Where auto has chosen it and the model is not
// served there, the CPU computes.
func (c *Up) divideCard(all []modelSettings, log *slog.Logger) error {
	if len(all) > 1 {
		return c.withoutCard(errors.New("a card serves one model: start one command for each"), log)
	}
	serve := &all[0].ServeConfig
	ck, err := checkpoint.OpenSwiftKV(serve.Model, serve.SwiftKV)
	if err != nil {
		return err
	}
	defer ck.Close()
	filled := *serve
	if filled.Weights == string(models.QuantAuto) { // chosen later, to fit
		filled.Weights = tensor.Q4_0.String()
	}
	cluster.Identify(ck, &filled)
	c.serves = cluster.CardServesOf(&filled)
	m, err := c.serves.Plan(&ck.Config, c.KVMemory, c.card.Free)
	if err != nil {
		return c.withoutCard(err, log)
	}
	c.Device, c.KVMemory = c.card.ID, m.Caches
	return nil
}

// withoutCard lets the CPU compute where auto has chosen the card. Otherwise it returns the reason.
func (c *Up) withoutCard(why error, log *slog.Logger) error {
	if !c.auto {
		return fmt.Errorf("--device %s: %w", c.Device, why)
	}
	log.Info("the CPU computes", "reason", why)
	c.Device, c.card = cluster.DeviceCPU, nil
	return nil
}
