package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// accepts checks that the program accepts a command line from a file of deploy/.
func accepts(t *testing.T, where string, args []string, env map[string]string) {
	t.Helper()
	for name, value := range env {
		t.Setenv(name, value)
	}
	if _, err := parsed(t, args...); err != nil {
		t.Errorf("%s: shoal %s: %v", where, strings.Join(args, " "), err)
	}
	for name := range env {
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
}

// documents parses each document of a YAML file by itself, since an anchor is local to its document.
func documents[T any](t *testing.T, path string) (out []T) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range strings.Split(string(text), "\n---\n") {
		var v T
		if err := yaml.Unmarshal([]byte(one), &v); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, v)
	}
	return out
}

// TestDeployedCommands checks that the program accepts the commands of the units and containers, and
// the config file of the package.
func TestDeployedCommands(t *testing.T) {
	units, err := filepath.Glob("../../deploy/systemd/*.service")
	if err != nil || len(units) != 3 {
		t.Fatalf("%v: %v", units, err)
	}
	const flags = "../../deploy/deb/shoal.yaml"
	text, err := os.ReadFile(flags)
	if err != nil {
		t.Fatal(err)
	}
	// The commented example for several machines must be valid as well.
	example := filepath.Join(t.TempDir(), "shoal.yaml")
	_, several, _ := strings.Cut(string(text), "# cluster-key:")
	if err := os.WriteFile(example, []byte("cluster-key:"+strings.ReplaceAll(several, "\n# ", "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, u := range units {
		unit, err := os.ReadFile(u)
		if err != nil {
			t.Fatal(err)
		}
		start := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/shoal (.*)$`).FindSubmatch(unit)
		for _, file := range []string{flags, example} {
			if file == flags && !strings.HasSuffix(u, "/shoal.service") {
				continue // the other units need the example
			}
			accepts(t, u, strings.Fields(strings.ReplaceAll(string(start[1]), "/etc/shoal/shoal.yaml", file)), nil)
		}
	}
	for _, c := range documents[struct {
		Services map[string]struct {
			Command     []string
			Environment map[string]string
		}
	}](t, "../../deploy/docker/compose.yaml") {
		if len(c.Services) != 4 {
			t.Errorf("compose starts %d services", len(c.Services))
		}
		for name, s := range c.Services {
			accepts(t, "compose: "+name, s.Command, s.Environment)
		}
	}
}

type labels map[string]string

// object holds the members of a Kubernetes object that the test checks.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct{ Name string }
	Spec       struct {
		ClusterIP                string `yaml:"clusterIP"`
		PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
		Selector                 yaml.Node
		ServiceName              string `yaml:"serviceName"`
		PodManagementPolicy      string `yaml:"podManagementPolicy"`
		Template                 struct {
			Metadata struct{ Labels labels }
			Spec     struct {
				SecurityContext struct {
					RunAsNonRoot bool `yaml:"runAsNonRoot"`
				} `yaml:"securityContext"`
				TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
				Containers                    []struct {
					Args  []string
					Env   []struct{ Name, Value string }
					Ports []struct {
						Name          string
						ContainerPort int `yaml:"containerPort"`
					}
					Live  *probe `yaml:"livenessProbe"`
					Start *probe `yaml:"startupProbe"`
					Ready *probe `yaml:"readinessProbe"`
				}
			}
		}
	}
}

type probe struct {
	TCPSocket *struct{ Port string } `yaml:"tcpSocket"`
	Period    int                    `yaml:"periodSeconds"`
	Failures  int                    `yaml:"failureThreshold"`
	HTTPGet   *struct{ Path string } `yaml:"httpGet"`
}

// TestKubernetes checks that the flags of the pods are valid, that pods find each other before they
// are ready, and that no probe ends a coordinator that waits.
func TestKubernetes(t *testing.T) {
	all := documents[object](t, "../../deploy/kubernetes/shoal.yaml")
	var pods, services []object
	for _, o := range all {
		switch o.Kind {
		case "StatefulSet":
			pods = append(pods, o)
		case "Service":
			services = append(services, o)
		}
	}
	if len(pods) != 2 || len(services) != 2 {
		t.Fatalf("%d stateful sets, %d services", len(pods), len(services))
	}
	selects := func(o object) labels {
		var of struct {
			MatchLabels labels `yaml:"matchLabels"`
		}
		if err := o.Spec.Selector.Decode(&of); err == nil && of.MatchLabels != nil {
			return of.MatchLabels
		}
		var l labels
		if err := o.Spec.Selector.Decode(&l); err != nil {
			t.Fatal(err)
		}
		return l
	}
	match := func(l labels, p object) bool {
		for k, v := range l {
			if p.Spec.Template.Metadata.Labels[k] != v {
				return false
			}
		}
		return len(l) > 0
	}
	headless := slices.IndexFunc(services, func(s object) bool { return s.Spec.ClusterIP == "None" })
	if headless < 0 || !services[headless].Spec.PublishNotReadyAddresses {
		t.Fatal("the names of pods that are not ready are not published, so no node finds a coordinator that waits for nodes")
	}
	for _, p := range pods {
		name, spec := p.Metadata.Name, p.Spec.Template.Spec
		if !match(selects(p), p) || !match(selects(services[headless]), p) || p.Spec.ServiceName != services[headless].Metadata.Name {
			t.Errorf("%s: selectors and labels do not match", name)
		}
		if !spec.SecurityContext.RunAsNonRoot || spec.TerminationGracePeriodSeconds < 35 {
			t.Errorf("%s runs as root, or is killed before its requests had 30 s to end", name)
		}
		c := spec.Containers[0]
		env := map[string]string{}
		for _, e := range c.Env {
			if strings.HasPrefix(e.Name, "SHOAL_") {
				env[e.Name] = "secret"
			}
		}
		accepts(t, name, c.Args, env)
		if live := c.Live; live != nil && live.TCPSocket == nil {
			t.Errorf("%s: the liveness probe is %+v, but /health and /ready answer 503 while it waits", name, live)
		}
		if c.Live != nil && (c.Start == nil || c.Start.TCPSocket == nil || c.Start.Period*c.Start.Failures < 3600) {
			t.Errorf("%s: the liveness probe ends it while it pulls a model, before the API listens: want a startup probe of an hour", name)
		}
		switch c.Args[0] {
		case "coordinator":
			if c.Live == nil || c.Ready == nil || c.Ready.HTTPGet == nil || c.Ready.HTTPGet.Path != "/ready" {
				t.Errorf("%s: probes %+v, %+v", name, c.Live, c.Ready)
			}
			at := "shoal-coordinator-0." + services[headless].Metadata.Name + ":7070"
			if text, err := os.ReadFile("../../deploy/kubernetes/shoal.yaml"); err != nil ||
				name+"-0" != "shoal-coordinator-0" || !strings.Contains(string(text), "--join, \""+at+"\"") {
				t.Errorf("nodes do not join %s (%v)", at, err)
			}
		case "node":
			if p.Spec.PodManagementPolicy != "Parallel" {
				t.Errorf("%s: nodes start one after the other, but none becomes ready before all have joined", name)
			}
		}
	}
}
