package join

import (
	"fmt"
	"regexp"
	"strings"
)

// clusterName is also the name of a folder. It is as strict as gossip and the bus are.
var clusterName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)

// machineName is the form of machine names in the log.
var machineName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// CheckCluster returns an error if name is no valid name of a cluster.
func CheckCluster(name string) error {
	if !clusterName.MatchString(name) {
		return fmt.Errorf("--cluster %q: want 1 to 63 letters, digits, - and _", name)
	}
	return nil
}

// CleanName makes a machine's name of any text.
func CleanName(text string) string {
	out := strings.Map(func(r rune) rune {
		if machineName.MatchString(string(r)) {
			return r
		}
		return '-'
	}, text)
	return out[:min(len(out), 64)]
}
