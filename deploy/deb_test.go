package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// maintainer runs a script of the package in a root folder of its own, and returns the commands that it gave to systemctl.
// It replaces absolute paths by those below root.
func maintainer(t *testing.T, root, script string, args ...string) []string {
	t.Helper()
	bin := filepath.Join(root, "bin")
	calls := filepath.Join(root, "calls")
	for name, text := range map[string]string{
		"systemctl": `echo "$@" >>"` + calls + `"`,
		"getent":    "exit 0", "useradd": "exit 1",
		"chown": `shift; for f; do [ -e "$f" ] || exit 1; done`,
	} {
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.Remove(calls)
	text := read(t, "deb/"+script)
	for _, dir := range []string{"/etc/", "/var/", "/run/"} {
		text = regexp.MustCompile(`([ "])`+dir).ReplaceAllString(text, "${1}"+root+dir)
	}
	cmd := exec.Command("sh", append([]string{"-c", text, script}, args...)...)
	cmd.Env = []string{"PATH=" + bin + ":/usr/bin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s %v: %v\n%s", script, args, err, out)
	}
	got, err := os.ReadFile(calls)
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(got)), "\n")
}

func has(calls []string, command string) bool {
	for _, c := range calls {
		if strings.HasPrefix(c, command) && strings.Contains(c, "shoal.service") && strings.Contains(c, "shoal-node.service") &&
			strings.Contains(c, "shoal-coordinator.service") {
			return true
		}
	}
	return false
}

// TestMaintainerScripts: an upgrade leaves running services running, the removal stops them, and a purge removes what
// enabled them. dpkg calls the scripts in this order.
func TestMaintainerScripts(t *testing.T) {
	root := t.TempDir()
	put := func(path string) {
		t.Helper()
		at := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(path string) bool {
		_, err := os.Lstat(filepath.Join(root, path))
		return err != nil
	}
	put("run/systemd/system/x")
	put("etc/shoal/shoal.yaml")
	put("var/lib/shoal/jobs")
	put("var/cache/shoal/weights")
	wants := "etc/systemd/system/multi-user.target.wants/"
	for _, unit := range []string{"shoal", "shoal-node", "shoal-coordinator"} {
		put(wants + unit + ".service")
	}

	if calls := maintainer(t, root, "postinst", "configure", ""); has(calls, "stop") || has(calls, "restart") {
		t.Errorf("an installation: %q", calls)
	}

	calls := maintainer(t, root, "prerm", "upgrade", "0.2.0")
	calls = append(calls, maintainer(t, root, "postrm", "upgrade", "0.2.0")...)
	calls = append(calls, maintainer(t, root, "postinst", "configure", "0.1.0")...)
	if has(calls, "stop") || !has(calls, "try-restart") {
		t.Errorf("an upgrade stops the services and does not start them again, or leaves the old program: %q", calls)
	}
	if gone("var/lib/shoal/jobs") || gone(wants+"shoal.service") {
		t.Error("an upgrade has removed jobs or enabled units")
	}

	if err := os.Remove(filepath.Join(root, "etc/shoal/shoal.yaml")); err != nil {
		t.Fatal(err)
	}
	maintainer(t, root, "postinst", "configure", "0.1.0") // dpkg keeps a removed file of flags removed

	if calls := maintainer(t, root, "prerm", "remove"); !has(calls, "stop") {
		t.Errorf("a removal leaves the services running: %q", calls)
	}
	maintainer(t, root, "postrm", "remove")
	if gone("var/lib/shoal/jobs") || gone(wants+"shoal.service") {
		t.Error("a removal has removed jobs or enabled units")
	}
	maintainer(t, root, "postrm", "purge")
	for _, path := range []string{"var/lib/shoal", "var/cache/shoal", wants + "shoal.service", wants + "shoal-node.service",
		wants + "shoal-coordinator.service"} {
		if !gone(path) {
			t.Errorf("a purge leaves /%s", path)
		}
	}
}
