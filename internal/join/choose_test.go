package join

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/mdns"
)

// TestChoose: which of the clusters that answer is joined.
func TestChoose(t *testing.T) {
	lab, shop := Found{"lab", "10.0.0.1:7069", Pin{1}}, Found{"shop", "10.0.0.2:7069", Pin{2}}
	twin := Found{"lab", "10.0.0.3:7069", Pin{3}}
	of := func(p Pin) *Token { t := newToken(p); return &t }
	for name, c := range map[string]struct {
		found   []Found
		cluster string
		token   *Token
		want    Found
		says    string
	}{
		"one":      {[]Found{lab}, "", nil, lab, ""},
		"none":     {nil, "", nil, Found{}, "no cluster answers"},
		"by name":  {[]Found{lab, shop}, "shop", nil, shop, ""},
		"by token": {[]Found{lab, shop, twin}, "", of(Pin{3}), twin, ""},
		"several": {[]Found{lab, shop}, "", nil,
			Found{}, "--cluster NAME:\n  lab                  at 10.0.0.1:7069, fingerprint 0100000000000000\n  shop"},
		"two of one name":          {[]Found{lab, twin}, "lab", nil, Found{}, "--join ADDRESS:"},
		"another name":             {[]Found{lab}, "shop", nil, Found{}, `no cluster "shop"`},
		"a token of somebody else": {[]Found{lab, shop}, "", of(Pin{9}), Found{}, "none of the clusters"},
		"an advert that lies about its name, with the token of another": {[]Found{lab}, "lab", of(Pin{2}), Found{}, "none of the clusters"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Choose(c.found, c.cluster, c.token)
			if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// TestReadAdvert: answers that are not adverts of ours are skipped.
func TestReadAdvert(t *testing.T) {
	pin := Pin{7}
	good := func() *mdns.ServiceEntry {
		return &mdns.ServiceEntry{Name: "lab-0700000000000000._shoal._tcp.local.", AddrV4: net.IPv4(10, 0, 0, 1), Port: 7069,
			InfoFields: []string{advertVersion, advertCluster + "lab", advertPin + pin.Text()}}
	}
	if f, ok := readAdvert(good()); !ok || f != (Found{"lab", "10.0.0.1:7069", pin}) {
		t.Errorf("got %+v, %v", f, ok)
	}
	for name, change := range map[string]func(*mdns.ServiceEntry){
		"a printer":             func(e *mdns.ServiceEntry) { e.Name = "x._ipp._tcp.local." },
		"no version":            func(e *mdns.ServiceEntry) { e.InfoFields = e.InfoFields[1:] },
		"no fingerprint":        func(e *mdns.ServiceEntry) { e.InfoFields = e.InfoFields[:2] },
		"a short fingerprint":   func(e *mdns.ServiceEntry) { e.InfoFields[2] = advertPin + "0700" },
		"a name for a terminal": func(e *mdns.ServiceEntry) { e.InfoFields[1] = advertCluster + "\x1b[2J" },
		"no port":               func(e *mdns.ServiceEntry) { e.Port = 0 },
		"no address":            func(e *mdns.ServiceEntry) { e.AddrV4 = nil },
	} {
		e := good()
		change(e)
		if f, ok := readAdvert(e); ok {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestChooseAddr: where the first machine listens.
func TestChooseAddr(t *testing.T) {
	at := func(iface, addr string, virtual, def bool) HostAddr {
		return HostAddr{iface, netip.MustParseAddr(addr), virtual, def}
	}
	lo, link := at("lo", "127.0.0.1", true, false), at("eth0", "fe80::1", false, false)
	for name, c := range map[string]struct {
		all  []HostAddr
		want string
		says string
	}{
		"default route": {[]HostAddr{lo, link, at("docker0", "172.17.0.1", true, false),
			at("eth0", "10.0.0.2", false, true), at("eth1", "10.1.0.2", false, false)}, "10.0.0.2", ""},
		"both families": {[]HostAddr{at("eth0", "10.0.0.2", false, true), at("eth0", "2001:db8::2", false, true)}, "10.0.0.2", ""},
		"IPv6 alone":    {[]HostAddr{lo, at("eth0", "2001:db8::2", false, true)}, "2001:db8::2", ""},
		"no default route, one device": {[]HostAddr{lo, at("docker0", "172.17.0.1", true, false), at("eth0", "10.0.0.2", false, false)},
			"10.0.0.2", ""},
		"a bridge alone": {[]HostAddr{lo, at("br0", "10.0.0.2", true, false)}, "10.0.0.2", ""},
		"two networks": {[]HostAddr{at("eth0", "10.0.0.2", false, false), at("eth1", "10.1.0.2", false, false)},
			"", "10.0.0.2 (eth0), 10.1.0.2 (eth1); choose one with --bind"},
		"none": {[]HostAddr{lo, link}, "", "can reach no address"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ChooseAddr(c.all)
			if c.want != "" && got.String() != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, %v", got, err)
			}
		})
	}
}

// TestPrune: expired tokens are recorded for a day, and a cluster has a maximum number of tokens.
func TestPrune(t *testing.T) {
	now := time.Now()
	var all []Record
	for i := range mostRecords + 10 {
		all = append(all, Record{ID: string(rune('a' + i)), Expires: now.Add(time.Hour)})
	}
	all[5].Expires = now.Add(-25 * time.Hour)
	all[200].Expires = now.Add(-23 * time.Hour)
	got := prune(all, now)
	if len(got) != mostRecords || got[0].ID == "a" || !got[len(got)-1].Expires.After(now) {
		t.Errorf("%d are left, the first is %q", len(got), got[0].ID)
	}
	for _, r := range got {
		if now.Sub(r.Expires) > remember {
			t.Errorf("%q expired long ago", r.ID)
		}
	}
	got = used(append(got, Record{ID: "x"}), "x", "m")
	if r := got[len(got)-1]; r.Uses != 1 || len(r.Joined) != 1 {
		t.Errorf("%+v", r)
	}
}
