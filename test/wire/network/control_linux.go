package network

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/shoal-llm/shoal/test/wire/link"
)

// Usage lists the commands of Control.
const Usage = `cut NAME            separate a host or a rack from the rest
cut NAME NAME       separate two hosts or racks from each other
heal                end all partitions
heal NAME [NAME]    end one
set NAME KEY=VALUE  change the link of a host or a rack: ` + link.Keys + `
hosts               list the hosts: name, address, rack, second address
stats               show counters of all links, and how late packets were`

// Control executes one command and returns its output.
func (n *Network) Control(ctx context.Context, words []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var text string
	var err error
	if e := n.do(ctx, func() { text, err = n.control(words) }); e != nil {
		return "", e
	}
	return text, err
}

func (n *Network) control(words []string) (string, error) {
	if len(words) == 0 {
		return "", fmt.Errorf("no command: want one of\n%s", Usage)
	}
	f, args := n.fabric, words[1:]
	switch words[0] {
	case "cut", "heal":
		cut := words[0] == "cut"
		switch len(args) {
		case 0:
			if cut {
				return "", fmt.Errorf("cut: name a host or a rack")
			}
			f.heal()
			return "", nil
		case 1:
			return "", f.isolate(args[0], cut)
		case 2:
			return "", f.separate(args[0], args[1], cut)
		}
	case "set":
		if len(args) >= 2 {
			return "", f.set(args[0], args[1:])
		}
	case "hosts":
		return f.hostsText(), nil
	case "stats":
		return f.statsText() + n.late.text(), nil
	}
	return "", fmt.Errorf("%q is not a command: want one of\n%s", strings.Join(words, " "), Usage)
}

// set changes a link in both directions, or nothing if a setting is wrong.
func (f *fabric) set(name string, settings []string) error {
	links, err := f.linksOf(name)
	if err != nil {
		return err
	}
	s := links[0].Settings
	for _, x := range settings {
		k, v, _ := strings.Cut(x, "=")
		if err := s.Set(k, v); err != nil {
			return err
		}
	}
	for _, l := range links {
		l.Settings = s
	}
	return nil
}

func (f *fabric) hostsText() string {
	var b strings.Builder
	for _, h := range f.top.Hosts {
		fmt.Fprintf(&b, "%s %s %s", h.Name, h.Address, f.top.Racks[h.Rack].Name)
		if h.IPv6.IsValid() {
			fmt.Fprintf(&b, " %s", h.IPv6)
		}
		if h.NAT.IsValid() {
			fmt.Fprintf(&b, " behind a router as %s", h.NAT)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func (f *fabric) statsText() string {
	var b strings.Builder
	line := func(name string, l *link.Link) {
		if l.Counters != (link.Counters{}) {
			fmt.Fprintf(&b, "%-10s %9d packets %12d bytes, dropped: %d queue full, %d lost, %d cut; %d reordered, %d duplicated\n",
				name, l.Sent, l.Bytes, l.Full, l.Lost, l.Counters.Cut, l.Reordered, l.Duplicated)
		}
	}
	for i, h := range f.top.Hosts {
		line(h.Name+" up", f.up[i])
		line(h.Name+" down", f.down[i])
	}
	for i, r := range f.top.Racks {
		line(r.Name+" up", f.out[i])
		line(r.Name+" down", f.in[i])
	}
	fmt.Fprintf(&b, "%d refused by a firewall, %d cut between pairs, %d to unknown addresses, %d dropped by address translation\n",
		f.refused, f.cutOff, f.strays, f.blocked)
	return b.String()
}

func (l *lateness) text() string {
	if l.packets == 0 {
		return "no packets delivered\n"
	}
	return fmt.Sprintf("%d packets delivered, on average %v late, at most %v; %.2f %% more than %v\n",
		l.packets, l.sum/time.Duration(l.packets), l.most, 100*float64(l.above)/float64(l.packets), lateLimit)
}
