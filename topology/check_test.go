package topology

import "testing"

func TestCheckRefusesWhatPlaceWouldNotMake(t *testing.T) {
	members := []Member{{ID: "a"}, {ID: "b", Share: 2}, {ID: "c"}}
	for name, damage := range map[string]func(*Placement){
		"overlap":          func(p *Placement) { p.Slices[1].Q.Lo-- },
		"gap":              func(p *Placement) { p.Slices[1].Vocab.Lo += 16 },
		"past the end":     func(p *Placement) { p.Slices[2].Out.Hi = 1 << 30 },
		"backwards":        func(p *Placement) { p.Slices[0].K.Hi = -5 },
		"split grain":      func(p *Placement) { p.Slices[0].Down.Hi -= 3; p.Slices[1].Down.Lo -= 3 },
		"units != columns": func(p *Placement) { p.Slices[0].FFN.Hi -= 32; p.Slices[1].FFN.Lo -= 32 },
		"nobody":           func(p *Placement) { p.Slices = nil },
	} {
		p, err := Place(1, Reduce, testShape(), members)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Check(testShape()); err != nil {
			t.Fatalf("a placement of Place was refused: %v", err)
		}
		if damage(&p); p.Check(testShape()) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
