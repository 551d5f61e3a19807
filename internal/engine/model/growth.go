package model

// GrowthKey is the setting of queries that grow.
const GrowthKey = "llama_4_scaling_beta"

// Growth is a factor of queries: 1 + Beta ln(1 + floor(position / Original)).
type Growth struct {
	Beta      float32 // 0: none
	Original  int     // in tokens
	Next      bool    `json:",omitempty"` // the position counts from 1
	Unrotated bool    `json:",omitempty"` // only in layers that do not rotate
}
