package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-llm/shoal/test/wire/calibrate"
	"github.com/shoal-llm/shoal/test/wire/host"
	"github.com/shoal-llm/shoal/test/wire/network"
	"github.com/shoal-llm/shoal/test/wire/topology"
)

type probeCmd struct {
	Inner bool `hidden:"" help:"Only try the steps, in the namespaces of this process."`
}

// probed is the network with which a machine is measured.
const probed = `
mtu: 9000
host: {rate: 10gbit, delay: 25us}
racks: {r1: [probe1, probe2]}
`

// Run tries every step as this user and, if one fails, in a user namespace. If all work, it measures
// a small network.
func (c *probeCmd) Run(ctx context.Context) error {
	if c.Inner {
		return printSteps(host.Probe())
	}
	fmt.Printf("%d processors, user %d\n", runtime.GOMAXPROCS(0), os.Getuid())
	for _, file := range []string{"/proc/version", "/proc/meminfo", "/proc/self/status", "/dev/net/tun"} {
		printFacts(file)
	}
	if err := printSteps(host.Probe()); err != nil {
		self, e := os.Executable()
		if e != nil {
			return e
		}
		fmt.Println("in a user namespace:")
		cmd := exec.CommandContext(ctx, self, "probe", "--inner")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		one := func(id int) []syscall.SysProcIDMap { return []syscall.SysProcIDMap{{HostID: id, Size: 1}} }
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
			UidMappings: one(os.Getuid()), GidMappings: one(os.Getgid())}
		return errors.Join(err, cmd.Run())
	}
	top, err := topology.Parse([]byte(probed))
	if err != nil {
		return err
	}
	n, err := network.Start(top)
	if err != nil {
		return err
	}
	r, err := calibrate.Measure(ctx, top, "probe1", "probe2",
		calibrate.Options{RoundTrips: 500, Every: 2 * time.Millisecond, Transfer: 2 * time.Second})
	if err == nil {
		fmt.Println(r.Text())
	}
	return errors.Join(err, n.Close())
}

func printSteps(steps []host.Step) (err error) {
	for _, s := range steps {
		if s.Err == "" {
			fmt.Printf("works: %s\n", s.Name)
			continue
		}
		fmt.Printf("FAILS: %s: %s\n", s.Name, s.Err)
		if !s.Optional { // times are less exact, or networks have no IPv6
			err = errors.Join(err, fmt.Errorf("probe: %s: %s", s.Name, s.Err))
		}
	}
	return err
}

// printFacts prints the mode of a device, or the lines of a file of the kernel about its version, the
// free memory and the permissions of this process.
func printFacts(file string) {
	if strings.HasPrefix(file, "/dev") {
		s, err := os.Stat(file)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %v\n", file, s.Mode())
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		fmt.Println(err)
		return
	}
	for line := range strings.Lines(string(text)) {
		for _, want := range []string{"Linux", "MemAvailable", "CapEff", "Seccomp:", "NoNewPrivs"} {
			if strings.HasPrefix(line, want) {
				fmt.Print(line)
			}
		}
	}
}
