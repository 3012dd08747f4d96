//go:build !wasip1

package anabranch

// The host of native runs: see Test.
var (
	nativeLines    []string
	nativeSettings map[string]string
)

func hostLog(level Level, message string) {
	nativeLines = append(nativeLines, levelNames[level]+": "+message)
}

func hostConfig(key string) (string, bool) {
	value, ok := nativeSettings[key]
	return value, ok
}

func bindNative(settings map[string]string) { nativeLines, nativeSettings = nil, settings }

func takeNative() []string {
	lines := nativeLines
	nativeLines, nativeSettings = nil, nil
	return lines
}
