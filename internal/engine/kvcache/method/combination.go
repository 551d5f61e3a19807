package method

import (
	"fmt"

	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/budget"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/pages"
	"github.com/shoal-llm/shoal/internal/engine/tensor"
)

// combination is the settings that combine with a policy:
//
//	layers=pyramid,beta=B  a compressor's tokens are divided among the layers, see budget.Pyramid
//	heads=ada,floor=F      and among the heads of each layer, see budget.Heads
//	ring=N                 the prompt's part of a policy, with the newest N tokens after it
//	recall=N,page=P        tokens that a ring evicts stay in the cache, see pages.Recall
//	positions=cache,half=1 see kvcache.Policy.AtCachePositions
type combination struct {
	beta   setting // number 0: layers are equal
	ring   setting // zero: all tokens after the prompt stay
	recall setting // zero: evicted tokens are lost
	page   setting
	floor  setting
	cache, half,
	pyramid, ada bool
}

// Beta is the parameter of a pyramid: the highest layer gets one beta-th of the mean.
var Beta = Param{Key: "beta", Value: 20, Min: 1, Max: 1000}

// Floor is the parameter of budgets of heads: the share of the mean in them.
var Floor = Share("floor", 200, 0, 1000)

// HeadBudget is kvcache.Parts.HeadBudget of Ada-KV.
func HeadBudget(floor int) *budget.Heads {
	return &budget.Heads{Floor: floor, Block: tensor.BlockSlots}
}

// Page is the number of tokens of a page.
var Page = Param{Key: "page", Value: 16, Min: 16, Max: 64, PowerOfTwo: true}

var ringSize, recallSize = Size("ring", 0, 1), Size("recall", 0, 1)

// options are the settings of a combination as help has them, each with the combination that has it alone.
var options = []struct {
	usage string
	alone combination
}{
	{"layers=pyramid,beta=" + Beta.text(setting{number: Beta.Value}), combination{pyramid: true}},
	{"heads=ada,floor=" + Floor.text(setting{number: Floor.Value}), combination{ada: true}},
	{"ring=SIZE", combination{ring: setting{number: maxSlots}}},
	{"recall=SIZE,page=" + Page.text(setting{number: Page.Value}), combination{recall: setting{number: maxSlots}}},
	{"positions=cache,half=0", combination{cache: true}},
}

// combines returns the options that a policy takes, as help has them.
func combines(p *kvcache.Policy) (text string) {
	for i := range options {
		if options[i].alone.check(p) == nil {
			text += " [" + options[i].usage + "]"
		}
	}
	return text
}

// Pyramid is kvcache.Parts.LayerTopK of PyramidKV.
func Pyramid(topk, beta int) func(candidates, layer, layers int) int {
	return func(candidates, layer, layers int) int { return budget.Pyramid(topk, beta, candidates, layer, layers) }
}

// read removes the parameters of the combination from texts.
func (x *combination) read(texts map[string]string) (err error) {
	word := func(key, plain, other string) bool {
		text, ok := texts[key]
		delete(texts, key)
		if ok && text != plain && text != other && err == nil {
			err = fmt.Errorf("%s=%.60q must be %s or %s", key, text, plain, other)
		}
		return text == other
	}
	if x.pyramid = word("layers", "equal", "pyramid"); x.pyramid && err == nil {
		x.beta, err = take(texts, Beta)
	}
	if x.ada = word("heads", "equal", "ada"); x.ada && err == nil {
		x.floor, err = take(texts, Floor)
	}
	if x.cache = word("positions", "original", "cache"); x.cache && err == nil {
		var half setting
		half, err = take(texts, Flag("half"))
		x.half = half.number == 1
	}
	if err == nil {
		x.ring, err = take(texts, ringSize)
	}
	if err == nil {
		x.recall, err = take(texts, recallSize)
	}
	if x.recall != (setting{}) && err == nil {
		x.page, err = take(texts, Page)
	}
	return err
}

// check returns an error if a policy does not support these settings together.
func (x *combination) check(p *kvcache.Policy) error {
	_, runs := p.Eviction.(kvcache.Runner)
	_, rings := p.Eviction.(kvcache.Ring)
	switch recalls := x.recall != (setting{}); {
	case recalls && !rings:
		return fmt.Errorf("recall reads the tokens that a ring of the newest tokens evicts: %s has none; use snapstream, sage or streaming",
			p.Name())
	case recalls && (x.pyramid || x.ada):
		return fmt.Errorf("recall needs %s with equal numbers of chosen tokens in all heads: leave layers=pyramid and heads=ada out", p.Name())
	case recalls && x.cache:
		return fmt.Errorf("recall keeps every token of %s, so positions in the cache are the original ones: leave positions=cache out", p.Name())
	case x.pyramid && (p.Compressor == nil || p.Eviction != nil && !runs || p.LayerTopK != nil):
		return fmt.Errorf("layers=pyramid divides the tokens that a policy chooses of a prompt: %s chooses none once, or divides them already",
			p.Name())
	case x.ada && (p.Compressor == nil || p.Eviction != nil && !runs || p.HeadBudget != nil):
		return fmt.Errorf("heads=ada divides the tokens that a policy chooses of a prompt: %s chooses none once, or divides them already",
			p.Name())
	case x.ring != (setting{}) && (p.Eviction != nil || p.Compressor == nil && p.Selector == nil):
		return fmt.Errorf("ring limits the tokens after a prompt: %s limits them already, or reads all tokens", p.Name())
	case x.ring.number > 0 && x.ring.number < newest(p):
		return fmt.Errorf("ring=%d is smaller than the %d newest tokens that %s always reads: give at least as many",
			x.ring.number, newest(p), p.Name())
	case x.cache && !p.Evicts():
		return fmt.Errorf("%s evicts nothing: its positions in the cache are the original ones", p.Name())
	}
	return nil
}

// newest returns the number of newest tokens that every query reads by a parameter of the policy.
func newest(p *kvcache.Policy) int {
	if c, ok := p.Selector.(interface{ Newest() int }); ok {
		return c.Newest()
	}
	return 0
}

// text returns the combination's part of a spec, with the ring and the recalled tokens as numbers or as shares.
func (x *combination) text(ring, recall setting) (text string) {
	if x.pyramid {
		text += ",layers=pyramid,beta=" + Beta.text(x.beta)
	}
	if x.ada {
		text += ",heads=ada,floor=" + Floor.text(x.floor)
	}
	if ring != (setting{}) {
		text += ",ring=" + ringSize.text(ring)
	}
	if recall != (setting{}) {
		text += ",recall=" + recallSize.text(recall) + ",page=" + Page.text(x.page)
	}
	if x.cache {
		text += ",positions=cache"
	}
	if x.half {
		text += ",half=1"
	}
	return text
}

// with returns the combination with the policy of a prompt of the given length in tokens.
func (x *combination) with(p *kvcache.Policy, prompt int) *kvcache.Policy {
	if x.pyramid || x.ada || x.ring != (setting{}) {
		parts, ring := p.Parts, setting{}
		if x.pyramid {
			parts.LayerTopK = Pyramid(parts.TopK, x.beta.number)
		}
		if x.ada {
			parts.HeadBudget = HeadBudget(x.floor.number)
		}
		if x.ring != (setting{}) {
			ring.number = max(ringSize.of(x.ring, prompt), newest(p))
		}
		parts.Ring = ring.number
		inner := combination{beta: x.beta, pyramid: x.pyramid, floor: x.floor, ada: x.ada}
		p = kvcache.Compose(p.Name(), p.Spec()+inner.text(ring, setting{}), parts)
	}
	if ring, ok := p.Eviction.(kvcache.Ring); ok && x.recall != (setting{}) {
		recall := setting{number: recallSize.of(x.recall, prompt)}
		p = kvcache.Compose(p.Name(), p.Spec()+x.text(setting{}, recall), pages.Recall(p.Parts, ring, recall.number, x.page.number))
	}
	if x.cache {
		p = p.AtCachePositions(x.half)
	}
	return p
}
