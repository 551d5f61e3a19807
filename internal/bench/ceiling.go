package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/shoal-llm/shoal/internal/engine/tensor"
	"github.com/shoal-llm/shoal/internal/engine/tensor/kernel"
	"github.com/shoal-llm/shoal/internal/engine/tensor/peak"
	"github.com/shoal-llm/shoal/internal/machine"
)

// Ceiling is the peak performance of some threads of this machine.
type Ceiling struct {
	Threads int     `json:"threads"`
	Read    float64 `json:"read_gbs"`   // GB/s from memory, not from a cache
	FMA     float64 `json:"fma_gflops"` // float32; a multiply-add counts as two
	VNNI    float64 `json:"vnni_gops"`  // integer products of quantized weights; a multiply-add counts as two
}

// MeasureCeiling takes about 2*d.
func MeasureCeiling(p *tensor.Pool, d time.Duration) (Ceiling, error) {
	reads, err := peak.NewReads(p, int(machine.ReadSize()))
	if err != nil {
		return Ceiling{}, err
	}
	return Ceiling{Threads: p.Threads(), Read: reads.Best(d), FMA: peak.FMA(p, d/2), VNNI: peak.VNNI(p, d/2)}, reads.Close()
}

// peak returns the arithmetic ceiling for products with weights of a type.
func (c Ceiling) peak(dt tensor.DType) float64 {
	if kernel.Quantized(dt) {
		return c.VNNI
	}
	return c.FMA
}

// Machine describes where figures were measured.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory int64  `json:"memory_bytes"` // 0: unknown
	OS     string `json:"os"`
	Go     string `json:"go"`
	Load   string `json:"load_average"` // of the last minute, at the start of the run
}

// String returns a line to print above the figures.
func (m Machine) String() string {
	return fmt.Sprintf("%s, %d cores, %s, %s, load %s", m.CPU, m.Cores, m.OS, m.Go, m.Load)
}

// ThisMachine reads the data from Linux; on other systems most fields are empty.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	info, _ := os.ReadFile("/proc/cpuinfo")
	m.CPU = field(info, "model name")
	m.Memory = memory("MemTotal")
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.Load = string(bytes.Fields(load)[0])
	}
	return m
}

// Available returns the memory that can be used without swapping; 0: unknown.
func Available() int64 { return memory("MemAvailable") }

func memory(name string) int64 {
	info, _ := os.ReadFile("/proc/meminfo")
	f := bytes.Fields([]byte(field(info, name)))
	if len(f) == 0 {
		return 0
	}
	kib, _ := strconv.ParseInt(string(f[0]), 10, 64)
	return kib << 10
}

func field(file []byte, name string) string {
	for line := range bytes.Lines(file) {
		if k, v, ok := bytes.Cut(line, []byte(":")); ok && string(bytes.TrimSpace(k)) == name {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}
