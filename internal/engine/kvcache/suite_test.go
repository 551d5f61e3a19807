package kvcache_test

import (
	"github.com/shoal-llm/shoal/internal/engine/kvcache"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvcachetest"
	"github.com/shoal-llm/shoal/internal/engine/kvcache/kvpolicy"
)

// suite are the policies that run all tests of package kvcache.
var suite = []string{
	"full",
	"streaming:sink=4,recent=60",
	"streaming:sink=0,recent=1",
	"streaming:sink=3,recent=130",
	"snapkv:topk=40,obs=8,pool=5",
	"snapstream:sink=4,recent=30,topk=33,obs=8,pool=7",
	"snapstream:sink=0,recent=1,topk=5,obs=70,pool=1",
	"sage:sink=4,recent=20,topk=40",
	"h2o:recent=30,topk=30,step=0",
	"h2o:recent=30,topk=30,step=1",
	"tova:size=64",
	"streaming:sink=4,recent=60,positions=cache",
	"snapstream:sink=4,recent=30,topk=33,obs=8,pool=7,positions=cache,half=1",
	"h2o:recent=30,topk=30,step=1,positions=cache,half=1",
	"knorm:sink=4,recent=20,topk=30",
	"knorm:sink=0,recent=1,topk=9,positions=cache,half=1",
	"quest:page=16,budget=64,skip=0",
	"quest:page=32,budget=96,skip=1",
	"shadowkv:chunk=8,budget=32,outliers=2,local=1,int8=0,skip=0,keys=exact",
	"shadowkv:chunk=4,budget=16,outliers=0,local=2,int8=1,skip=1,keys=exact",
	"shadowkv:chunk=4,budget=8,outliers=2,local=1,int8=0,skip=0,keys=lowrank,rank=16",
	"shadowkv:chunk=8,budget=8,outliers=1,local=1,int8=1,skip=1,keys=lowrank,rank=8",
	"squeezed:clusters=0.25,levels=1,sparsity=0.8,tail=4,obs=6,segment=64",
	"squeezed:clusters=0.4,levels=2,sparsity=0.7,tail=8,obs=3,segment=100",
	"snapkv:topk=40,obs=8,pool=5,votes=prefix",
	"snapstream:sink=4,recent=30,topk=33,obs=8,pool=7,votes=candidates",
	"pyramidkv:topk=30,obs=8,pool=5,beta=4",
	"snapstream:sink=4,recent=30,topk=33,obs=8,pool=7,layers=pyramid,beta=3,positions=cache,half=1",
	"lagkv:sink=4,lag=16,topk=40",
	"snapkv:topk=40,obs=8,pool=5,ring=20",
	"knorm:sink=4,recent=20,topk=30,layers=pyramid,beta=3,ring=7,positions=cache,half=1",
	"squeezed:clusters=0.4,levels=2,sparsity=0.7,tail=8,obs=3,segment=100,ring=30",
	"loki:budget=40,dims=0.5,calib=64",
	"infinigen:alpha=1,most=0.3,dims=0.5,calib=64",
	"resnap:topk=20,every=30,obs=8,pool=5",
	"resnap:topk=20,every=9,obs=12,pool=3,positions=cache,half=1",
	"adakv:topk=70,obs=8,pool=5,floor=0.2",
	"snapstream:sink=4,recent=30,topk=130,obs=8,pool=7,heads=ada,floor=0,positions=cache,half=1",
	"knorm:sink=4,recent=20,topk=80,layers=pyramid,beta=3,heads=ada,floor=0,ring=9",
	"snapstream:sink=4,recent=30,topk=20,obs=8,pool=7,recall=32",
	"sage:sink=0,recent=1,topk=5,recall=64,page=32",
	"streaming:sink=3,recent=20,recall=16",
	"quest:page=16,budget=64,skip=0,ring=20",
	"quest:page=32,budget=96,skip=1,ring=5",
	"shadowkv:chunk=8,budget=32,outliers=2,local=1,int8=0,skip=0,keys=exact,ring=30",
	"shadowkv:chunk=4,budget=8,outliers=2,local=1,int8=0,skip=1,keys=lowrank,rank=16,ring=9",
	"loki:budget=40,dims=0.5,calib=64,ring=11",
	"infinigen:alpha=1,most=0.3,dims=0.5,calib=64,ring=70",
}

func init() {
	x := kvcache.Suite{
		Parse: kvpolicy.Parse, Noise: kvcachetest.Noise, WriteNoise: kvcachetest.WriteNoise, Observed: kvcachetest.Observed,
		Statistics: kvcachetest.Statistics, HandOver: kvcachetest.HandOver,
	}
	for _, spec := range suite {
		p, err := kvpolicy.Parse(spec)
		if err != nil {
			panic(err)
		}
		x.Policies = append(x.Policies, p)
	}
	x.Use()
}
