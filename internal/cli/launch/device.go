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
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/cluster"
	"github.com/shoal-llm/shoal/internal/cli/models"
	"github.com/shoal-llm/shoal/internal/engine/checkpoint"
	"github.com/shoal-llm/shoal/internal/engine/cuda"
	cudaprobe "github.com/shoal-llm/shoal/internal/engine/cuda/probe"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// ProbeTimeout is the default time after which a driver counts as hung.
const ProbeTimeout = time.Minute

// ProbeCards examines the cards in a child process, which a broken driver may hang or end. With a
// device, it is cudaprobe.Quick.
func ProbeCards(ctx context.Context, timeout time.Duration, device string) (r cudaprobe.Report, err error) {
	self, err := os.Executable()
	if err != nil {
		return r, err
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	args := []string{"gpu", "--child"}
	if device != "" {
		args = append(args, "--quick", device)
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

// driverFiles are files of a card's driver: on Linux, in a container, under WSL 2. Without them, and
// without the driver's library in LD_LIBRARY_PATH, auto means the CPU, and no child process probes the card.
var driverFiles = []string{"/dev/nvidiactl", "/dev/dxg"}

// hasDriver reports whether this machine may have a card.
func hasDriver() bool {
	files := driverFiles
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		files = append(files[:len(files):len(files)], filepath.Join(dir, cuda.Library))
	}
	return slices.ContainsFunc(files, func(f string) bool {
		_, err := os.Stat(f)
		return err == nil
	})
}

// noDriver is the reason of auto for the CPU on a machine without a card.
const noDriver = "there is no driver of an NVIDIA card"

// cardOf probes the cards, and returns the one that a device names; nil: the CPU. auto names the usable
// card with the most free memory. why is the reason if auto resolves to the CPU.
func cardOf(ctx context.Context, device string, log *slog.Logger) (d *cudaprobe.Device, why string, err error) {
	auto := device == cluster.DeviceAuto
	switch {
	case device == "" || device == cluster.DeviceCPU:
		return nil, "", nil
	case auto && !hasDriver():
		return nil, noDriver, nil
	}
	log.Info("testing the graphics cards; the first time, the driver compiles their kernels", "device", device, "timeout", ProbeTimeout)
	began := time.Now()
	r, err := ProbeCards(ctx, ProbeTimeout, device)
	if ctx.Err() != nil {
		return nil, "", ctx.Err()
	}
	if err != nil {
		r = cudaprobe.Report{Problem: err.Error()}
	}
	d, problem := choose(r)
	switch {
	case d != nil:
		log.Info("the graphics card computes the bits of the CPU", "device", d.ID, "card", d.Name, "free_bytes", d.Free,
			"memory_bytes", d.Memory, "took", time.Since(began).Round(time.Millisecond))
		return d, "", nil
	case auto:
		return nil, problem, nil
	}
	return nil, "", fmt.Errorf("--device %s: %s", device, problem)
}

// choose returns the usable card of a quick report, or the reason for none.
func choose(r cudaprobe.Report) (d *cudaprobe.Device, problem string) {
	var problems []string
	for i := range r.Devices {
		x := &r.Devices[i]
		if x.Problem == "" {
			return x, ""
		}
		problems = append(problems, x.ID+": "+x.Problem)
	}
	return nil, cmp.Or(r.Problem, strings.Join(problems, "; "))
}

// noCard names the first option of up that a card does not serve, or "".
func (c *Up) noCard() string {
	for _, x := range []struct {
		set  bool
		flag string
	}{
		{c.Nodes > 1 && !c.defaulted, "--nodes"}, {c.Draft != "", "--draft"}, {c.SwiftKV != "", "--swiftkv"},
		{len(c.Serve.LoRA) > 0 || c.Serve.LoRADir != "", "--lora"},
		{!cluster.CardComputes(c.Serve.Policy), "--policy"},
	} {
		if x.set {
			return x.flag
		}
	}
	return ""
}

// chooseCard determines whether a card computes, before the model is known.
func (c *Up) chooseCard(ctx context.Context, log *slog.Logger) error {
	c.auto = c.Device == cluster.DeviceAuto
	named := strings.HasPrefix(c.Device, "cuda:")
	if flag := c.noCard(); flag != "" && (named || c.auto && hasDriver()) {
		why := fmt.Errorf("%s is not computed on a card: use --device cpu", flag)
		if flag == "--nodes" {
			why = fmt.Errorf("--nodes %d: a card computes a model alone: use --nodes 1", c.Nodes)
		}
		return c.withoutCard(why, log)
	}
	d, why, err := cardOf(ctx, c.Device, log)
	if err != nil {
		return err
	}
	if why != "" {
		return c.withoutCard(errors.New(why), log)
	}
	if c.card = d; d == nil {
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
	free := c.card.Free
	if c.KVMemory == 0 {
		free -= nodeLess
	}
	m, err := c.serves.Plan(&ck.Config, c.KVMemory, free)
	if err != nil {
		return c.withoutCard(err, log)
	}
	c.Device, c.KVMemory, c.serves.StepTokens = c.card.ID, m.Caches, m.StepTokens
	return nil
}

// nodeLess is memory that caches of unlimited size leave free, because a node's process finds less free
// memory than the test of the card did (4 MiB on an H200).
const nodeLess = 64 << 20

// withoutCard lets the CPU compute where auto has chosen the card. Otherwise it returns the reason.
func (c *Up) withoutCard(why error, log *slog.Logger) error {
	if !c.auto {
		return fmt.Errorf("--device %s: %w", c.Device, why)
	}
	log.Info(cluster.CPUComputes, "device", cluster.DeviceAuto, "reason", why)
	c.Device, c.card = cluster.DeviceCPU, nil
	return nil
}
