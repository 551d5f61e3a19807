// Package probe examines the graphics cards of a machine: model and memory, speed of the memory and the
// bus, and whether they compute the same bits as the CPU.
package probe

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/cuda"
)

// Report describes the machine's cards. It is the JSON of `shoal gpu --json`.
type Report struct {
	// Problem is the reason why no card can be used: no driver, or one that is too old. Devices is empty then.
	Problem string   `json:"problem,omitempty"`
	CUDA    string   `json:"cuda,omitempty"` // newest CUDA version that the driver supports
	Devices []Device `json:"devices"`
}

// Device describes one card.
type Device struct {
	ID              string `json:"id"` // cuda:0
	Name            string `json:"name"`
	UUID            string `json:"uuid"`
	PCI             string `json:"pci"`
	Capability      string `json:"compute_capability"`
	Multiprocessors int    `json:"multiprocessors"`
	Memory          int64  `json:"memory_bytes"`
	Free            int64  `json:"free_bytes"`

	// Problem is the reason why Shoal does not use the card: it is too old, in exclusive use, or it
	// computed other bits than the CPU.
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

// Run examines all cards. It loads the driver into this process and takes some seconds; a driver that is
// broken can hang or end the process, so callers use a child process.
func Run() Report { return run("") }

// Auto, as the device of Quick, is the first card by free memory that can be used.
const Auto = "auto" // as --device

// Quick is Run for a node's start: it measures no speeds, and tests only the card of that id, or for Auto
// one after another until a card passes. Cards that were not tested are not in the report, but a card
// that does not exist is a problem of it.
func Quick(device string) Report {
	r, devices := list()
	if device == Auto {
		free := map[*cuda.Device]int64{}
		for _, d := range devices {
			free[d] = freeOf(d)
		}
		slices.SortStableFunc(devices, func(x, y *cuda.Device) int { return cmp.Compare(free[y], free[x]) })
	} else {
		n := len(devices)
		devices = slices.DeleteFunc(devices, func(d *cuda.Device) bool { return id(d) != device })
		if len(devices) == 0 && r.Problem == "" {
			r.Problem = fmt.Sprintf("the driver finds no %s among its cards (%d); `shoal gpu` lists them", device, n)
		}
	}
	for _, d := range devices {
		x := examine(d, "", true)
		r.Devices = append(r.Devices, x)
		if x.Problem == "" {
			break
		}
	}
	return r
}

// freeOf returns the free memory of a card, or 0 if it cannot be used.
func freeOf(d *cuda.Device) int64 {
	c, err := d.Use()
	if err != nil {
		return 0
	}
	free, _, err := c.MemoryInfo()
	if errors.Join(err, c.Close()) != nil {
		return 0
	}
	return free
}

// list opens the driver. The report has the reason if there is no card.
func list() (Report, []*cuda.Device) {
	driver, err := cuda.Open()
	if err != nil {
		return Report{Problem: err.Error(), Devices: []Device{}}, nil
	}
	r := Report{CUDA: driver.CUDA(), Devices: []Device{}}
	devices, err := driver.Devices()
	if err != nil {
		r.Problem = err.Error()
	} else if len(devices) == 0 {
		r.Problem = "the driver finds no card"
	}
	return r, devices
}

// run compares the results of one kernel, or of all for "".
func run(kernel string) Report {
	r, devices := list()
	for _, d := range devices {
		r.Devices = append(r.Devices, examine(d, kernel, false))
	}
	return r
}

func id(d *cuda.Device) string { return fmt.Sprintf("cuda:%d", d.Index) }

func examine(d *cuda.Device, kernel string, quick bool) Device {
	r := Device{ID: id(d), Name: d.Name, UUID: d.UUID, PCI: d.PCI, Capability: fmt.Sprintf("%d.%d", d.Major, d.Minor),
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
