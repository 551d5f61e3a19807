package deploy_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// container is what the tests check of one of Compose or Kubernetes.
type container struct {
	name     string
	args     []string
	env      map[string]string // those of the image, replaced by its own
	secret   []string          // variables whose values are elsewhere
	mounts   []string          // writable folders
	readOnly bool              // the root folder
	scraped  bool              // an annotation asks Prometheus to scrape it
}

// imageEnv returns the variables that the Dockerfile sets.
func imageEnv(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, line := range regexp.MustCompile(`(?m)^ENV (.*)$`).FindAllStringSubmatch(read(t, "docker/Dockerfile"), -1) {
		for _, one := range strings.Fields(line[1]) {
			name, value, _ := strings.Cut(one, "=")
			out[name] = value
		}
	}
	return out
}

func containers(t *testing.T) (all []container) {
	t.Helper()
	var compose struct {
		Services map[string]struct {
			ReadOnly    bool `yaml:"read_only"`
			Command     []string
			Tmpfs       []string
			Volumes     []string
			Environment map[string]string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "docker/compose.yaml")), &compose); err != nil {
		t.Fatal(err)
	}
	for name, s := range compose.Services {
		c := container{name: "compose: " + name, args: s.Command, env: imageEnv(t), mounts: slices.Clone(s.Tmpfs), readOnly: s.ReadOnly}
		for k, v := range s.Environment {
			c.env[k] = v
		}
		for _, v := range s.Volumes {
			if _, at, named := strings.Cut(v, ":"); named {
				v = at
			}
			c.mounts = append(c.mounts, v)
		}
		all = append(all, c)
	}
	for d := yaml.NewDecoder(bytes.NewReader([]byte(read(t, "kubernetes/shoal.yaml")))); ; {
		var o struct {
			Kind     string
			Metadata struct{ Name string }
			Spec     struct {
				Template struct {
					Metadata struct{ Annotations map[string]string }
					Spec     struct {
						Containers []struct {
							Args []string
							Env  []struct {
								Name, Value string
								ValueFrom   *yaml.Node `yaml:"valueFrom"`
							}
							SecurityContext struct {
								ReadOnly bool `yaml:"readOnlyRootFilesystem"`
							} `yaml:"securityContext"`
							VolumeMounts []struct {
								MountPath string `yaml:"mountPath"`
								ReadOnly  bool   `yaml:"readOnly"`
							} `yaml:"volumeMounts"`
						}
					}
				}
			}
		}
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		for _, k := range o.Spec.Template.Spec.Containers {
			c := container{name: o.Metadata.Name, args: k.Args, env: imageEnv(t), readOnly: k.SecurityContext.ReadOnly,
				scraped: o.Spec.Template.Metadata.Annotations["prometheus.io/scrape"] == "true"}
			for _, e := range k.Env {
				if c.env[e.Name] = e.Value; e.ValueFrom != nil {
					c.secret = append(c.secret, e.Name)
				}
			}
			for _, m := range k.VolumeMounts {
				if !m.ReadOnly {
					c.mounts = append(c.mounts, m.MountPath)
				}
			}
			all = append(all, c)
		}
	}
}

// TestContainersCanWrite: with a read-only root, the folders that the program writes are on volumes: temporary files, pulled
// models and quantized weights, and the state of a coordinator. Otherwise --model org/name fails on the first day.
func TestContainersCanWrite(t *testing.T) {
	all := containers(t)
	if len(all) != 6 {
		t.Errorf("%d containers", len(all))
	}
	for _, c := range all {
		if !c.readOnly {
			t.Errorf("%s: its root folder is writable", c.name)
		}
		writes := map[string]string{"TMPDIR": c.env["TMPDIR"], "HF_HOME": c.env["HF_HOME"], "XDG_CACHE_HOME": c.env["XDG_CACHE_HOME"] + "/shoal"}
		if c.args[0] == "coordinator" {
			writes["--data-dir"] = c.args[slices.Index(c.args, "--data-dir")+1]
		}
		for what, dir := range writes {
			if !slices.ContainsFunc(c.mounts, func(m string) bool { return dir == m || strings.HasPrefix(dir, m+"/") }) {
				t.Errorf("%s: %s is %s, which is read-only; it may write %q", c.name, what, dir, c.mounts)
			}
		}
	}
}

// TestScrapersHaveAKey: /metrics needs the API key, which Prometheus's jobs for annotated pods do not send.
func TestScrapersHaveAKey(t *testing.T) {
	for _, c := range containers(t) {
		if c.scraped && slices.Contains(c.secret, "SHOAL_API_KEY") {
			t.Errorf("%s: an annotation asks for scraping without a key, which gets status 401", c.name)
		}
	}
}

// TestComposeOrder: the commands at the top of the Compose file work in their order, on a machine without the image: docker run
// would ask a public registry for one of that name. The keys that they write stay out of images and commits, and are
// private.
func TestComposeOrder(t *testing.T) {
	head, _, _ := strings.Cut(read(t, "docker/compose.yaml"), "\nname:")
	build, private, run := strings.Index(head, "docker build"), strings.Index(head, "umask 077"), strings.Index(head, "docker run")
	if build < 0 || private < 0 || run < max(build, private) {
		t.Errorf("the image is built at %d, files are private from %d on, and the key is made at %d", build, private, run)
	}
	for file, line := range map[string]string{"../.dockerignore": ".env", "../.gitignore": "/.env"} {
		if !slices.Contains(strings.Fields(read(t, file)), line) {
			t.Errorf("%s does not have %s", file, line)
		}
	}
}

// TestPodAddresses: the arguments of pods are addresses for IPv4 and for IPv6, and the API listens at both.
func TestPodAddresses(t *testing.T) {
	pods := 0
	for _, c := range containers(t) {
		for i, arg := range c.args {
			if strings.Contains(arg, "$(POD_IP)") {
				pods++
				for _, ip := range []string{"10.0.0.5", "fd00::5"} {
					at := strings.ReplaceAll(arg, "$(POD_IP)", ip)
					if host, port, err := net.SplitHostPort(at); err != nil || host != ip || port != "7070" {
						t.Errorf("%s: %s %s: host %q, port %q, %v", c.name, c.args[i-1], at, host, port, err)
					}
				}
			}
			if arg == "0.0.0.0:8080" && slices.Contains(c.secret, "SHOAL_API_KEY") {
				t.Errorf("%s: --listen %s is not reached in a cluster with IPv6 alone, where no probe succeeds", c.name, arg)
			}
		}
	}
	if pods != 2 {
		t.Errorf("%d addresses of pods", pods)
	}
}

// TestComposeStopsNodesLast: Compose stops a service before those that it depends on. A coordinator ends its requests with the
// nodes, so it must be the one that depends on them.
func TestComposeStopsNodesLast(t *testing.T) {
	var compose struct {
		Services map[string]struct {
			DependsOn []string `yaml:"depends_on"`
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "docker/compose.yaml")), &compose); err != nil {
		t.Fatal(err)
	}
	for name, s := range compose.Services {
		if name != "coordinator" && (len(s.DependsOn) > 0 || !slices.Contains(compose.Services["coordinator"].DependsOn, name)) {
			t.Errorf("%s depends on %q and is stopped before the coordinator", name, s.DependsOn)
		}
	}
}
