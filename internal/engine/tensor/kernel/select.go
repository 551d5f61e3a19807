package kernel

import (
	"fmt"
	"os"
	"strings"
)

// EnvCPU is the environment variable that forces an implementation of the kernels, by one of Names. If it
// is unset, the widest implementation that this machine can run is used.
const EnvCPU = "SHOAL_CPU"

var Active, activeErr = choose(os.Getenv(EnvCPU))

// choose returns the implementation called name, or the best one for an empty name. With an error
// it also returns the best one.
func choose(name string) (*Set, error) {
	all := All()
	if name == "" {
		return all[0], nil
	}
	var known []string
	for _, k := range all {
		if k.Name == name {
			return k, nil
		}
		known = append(known, k.Name)
	}
	return all[0], fmt.Errorf("kernel: %s=%q is not an implementation that this machine can run; known here: %s",
		EnvCPU, name, strings.Join(known, ", "))
}

// Implementation returns the name of the kernels in use: "avx512", "avx2" or "portable". The error
// reports that SHOAL_CPU names one that is not available; programs check it at start-up.
func Implementation() (string, error) { return Active.Name, activeErr }

// Names lists the kernels that this machine can run, the fastest first.
func Names() []string {
	var names []string
	for _, k := range All() {
		names = append(names, k.Name)
	}
	return names
}
