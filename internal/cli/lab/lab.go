package lab

import (
	"strings"

	"github.com/shoal-llm/shoal/internal/bench/serve/stats"
	"github.com/shoal-llm/shoal/internal/bench/serve/workload"
	"github.com/shoal-llm/shoal/internal/eval/score"
)

// Lab has the commands of the laboratory: measurements for those who develop Shoal or choose a
// machine, a type of weights or a cache policy.
type Lab struct {
	Decode    benchDecodeCmd    `cmd:"" help:"Measure decode in tokens per second, and compare it with the memory bandwidth of the same run."`
	Prefill   benchPrefillCmd   `cmd:"" help:"Measure prefill in tokens per second, by stage, and compare it with the arithmetic peak."`
	Cluster   benchClusterCmd   `cmd:"" help:"Measure decode, or prefill with --prompt, over real node processes. Reports compute, wait and bytes sent."`
	Forecast  benchForecastCmd  `cmd:"" help:"Compare the forecasts of shoal plan with measurements over node processes: decode steps and first tokens."`
	Prefix    benchPrefixCmd    `cmd:"" help:"Measure the time to first token with a warm prefix cache, compared with a cold one."`
	Batch     benchBatchCmd     `cmd:"" help:"Measure throughput and concurrent sequences in a fixed cache memory, with and without compression."`
	Forms     benchFormsCmd     `cmd:"" help:"Measure decode and prefill with each type of weights in memory, in one run."`
	LoRA      benchLoRACmd      `cmd:"" name:"lora" help:"Measure decode in tokens per second with LoRA adapters of several sequences each, compared with none."`
	Speculate benchSpeculateCmd `cmd:"" help:"Measure tokens per second with and without speculative decoding. Both must give the same answers."`
	Serve     benchServeCmd     `cmd:"" help:"Load a server of the OpenAI API: TTFT, time per token, throughput and goodput under limits."`
	Ruler     evalRulerCmd      `cmd:"" help:"Measure retrieval from long prompts: 12 tasks, any length, any cache policy; tables and plots."`
	Suite     evalSuiteCmd      `cmd:"" help:"Score published benchmarks from a local folder: LongBench, Infinite-Bench, RULER, GSM8K, MATH; pass@k."`
	Table     evalTableCmd      `cmd:"" help:"Measure the rows of a paper's table: SnapStream, ShadowKV, Squeezed Attention, EQUIP, SwiftKV."`
	PPL       evalPPLCmd        `cmd:"" name:"ppl" help:"Measure the perplexity of a text, also under cache policies."`
	JSONL     evalJSONLCmd      `cmd:"" name:"jsonl" help:"Score your own questions, in files of the form of LongBench or RULER."`
}

// Variables returns the values of the variables in the help of these commands.
func Variables() map[string]string {
	return map[string]string{"arrivals": workload.ArrivalsUsage, "lengths": workload.LengthsUsage, "limits": stats.LimitsUsage,
		"metrics": strings.Join(score.Names(), ",")}
}
