// Package probe examines the graphics cards of a machine: what they are, how fast their memory and
// their bus are, and whether they compute the same bits as the CPU.
package probe

import (
	"errors"
	"fmt"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
)

// Report is what is known of the machine's cards. It is the JSON of `shoal gpu --json`.
type Report struct {
	// Problem says why no card can be used: no driver, or one that is too old. Devices is empty then.
	Problem string   `json:"problem,omitempty"`
	CUDA    string   `json:"cuda,omitempty"` // newest CUDA version that the driver supports
	Devices []Device `json:"devices"`
}

// Device is what is known of one card.
type Device struct {
	ID              string `json:"id"` // cuda:0
	Name            string `json:"name"`
	UUID            string `json:"uuid"`
	PCI             string `json:"pci"`
	Capability      string `json:"compute_capability"`
	Multiprocessors int    `json:"multiprocessors"`
	Memory          int64  `json:"memory_bytes"`
	Free            int64  `json:"free_bytes"`

	// Problem says why Shoal does not use the card: it is too old, in exclusive use, or it computed
	// other bits than the CPU.
	Problem string `json:"problem,omitempty"`
	// Bits is true if every kernel gave the bits of the CPU.
	Bits bool `json:"same_bits"`

	// Bytes per second.
	Read     float64 `json:"read_bytes_per_second,omitempty"` // of the card's memory by a kernel
	Upload   float64 `json:"upload_bytes_per_second,omitempty"`
	Download float64 `json:"download_bytes_per_second,omitempty"`

	Compile time.Duration `json:"compile_ns,omitempty"` // PTX to code, with the driver's cache
	Launch  time.Duration `json:"launch_ns,omitempty"`  // one kernel and the wait for it
}

// Run examines all cards; quick does not measure speeds. It loads the driver into this process and takes some seconds; a driver
// that is broken can hang or end the process, so callers use a child process.
func Run(quick bool) Report { return run("", quick) }

// run compares the results of one kernel, or of all for "".
func run(kernel string, quick bool) Report {
	driver, err := cuda.Open()
	if err != nil {
		return Report{Problem: err.Error(), Devices: []Device{}}
	}
	r := Report{CUDA: driver.CUDA(), Devices: []Device{}}
	devices, err := driver.Devices()
	if err != nil {
		r.Problem = err.Error()
	} else if len(devices) == 0 {
		r.Problem = "the driver finds no card"
	}
	for _, d := range devices {
		r.Devices = append(r.Devices, examine(d, kernel, quick))
	}
	return r
}

func examine(d *cuda.Device, kernel string, quick bool) Device {
	r := Device{ID: fmt.Sprintf("cuda:%d", d.Index), Name: d.Name, UUID: d.UUID, PCI: d.PCI, Capability: fmt.Sprintf("%d.%d", d.Major, d.Minor),
		Multiprocessors: d.Multiprocessors, Memory: d.Memory}
	if err := r.use(d, kernel, quick); err != nil {
		r.Problem = err.Error()
	}
	return r
}

func (r *Device) use(d *cuda.Device, kernel string, quick bool) (err error) {
	if err := d.Usable(); err != nil {
		return err
	}
	c, err := d.Use()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if r.Free, _, err = c.MemoryInfo(); err != nil {
		return err
	}
	start := time.Now()
	k, err := open(c)
	if err != nil {
		return err
	}
	r.Compile = time.Since(start)
	if err := k.compareAll(kernel); err != nil {
		return err
	}
	r.Bits = true
	if quick {
		return nil
	}
	return k.measure(r)
}
