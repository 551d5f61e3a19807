package ollama

import "testing"

func TestParameterSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 16_800_000: "16.8M", 134_515_008: "135M",
		7_615_616_512: "7.6B", 70_553_706_496: "70.6B", 671_026_419_200: "671B", 1_026_000_000_000: "1.0T"} {
		if got := parameterSize(n); got != want {
			t.Errorf("%d parameters are %s, want %s", n, got, want)
		}
	}
}
