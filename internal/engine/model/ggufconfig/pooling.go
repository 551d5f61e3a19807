package ggufconfig

import "github.com/shoal-llm/shoal/internal/attempt"

// pooling reads the settings for vectors. The tensors after pooling are not part of the decoder.
func (m *metadata) pooling() {
	pooling, causal := m.arch+".pooling_type", m.arch+".attention.causal"
	m.headless = attempt.Must(m.f.Int(pooling, 0, 0, 4)) > 0
	m.read[pooling] = true
	if v, ok := m.f.Value(causal); ok {
		if flag, is := v.Bool(); is {
			m.read[causal] = true
			m.set("is_causal", causal, flag)
		}
	}
	for _, dense := range []string{"dense_2", "dense_3"} {
		m.read[m.arch+"."+dense+"_feat_in"], m.read[m.arch+"."+dense+"_feat_out"] = true, true
	}
	m.read[m.arch+".classifier.output_labels"] = true
}
