package cluster

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestBuildText(t *testing.T) {
	info := func(version string, settings ...debug.BuildSetting) *debug.BuildInfo {
		return &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: version}, Settings: settings}
	}
	rev := debug.BuildSetting{Key: "vcs.revision", Value: "0123456789abcdef0123"}
	for want, got := range map[string]string{
		"dev go1.26": buildText(info("(devel)")),
		"0123456789ab go1.26": buildText(info("v0.0.0-20261123-0123456789ab", rev,
			debug.BuildSetting{Key: "vcs.modified", Value: "false"})),
		"v1.2.3 0123456789ab+changes go1.26": buildText(info("v1.2.3", rev, debug.BuildSetting{Key: "vcs.modified", Value: "true"})),
		"dev tags=x go1.26":                  buildText(info("", debug.BuildSetting{Key: "-tags", Value: "x"})),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := buildText(info("", debug.BuildSetting{Key: "-tags", Value: strings.Repeat("x", 200)})); len(got) != maxBuild {
		t.Errorf("%d bytes", len(got))
	}
}
