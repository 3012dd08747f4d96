package anabranch

// Numbers of its own at the host's /metrics (`[plugins.<name>.grants] metrics = true`). The host adds the labels `plugin`
// and `mapping`, and bounds how many series there may be: give labels few values.

// Label of a number.
type Label struct{ Name, Value string }

// Count adds to a counter, which is shown as `anabranch_guest_<name>_total`.
func Count(name string, by uint64, labels ...Label) error {
	if err := isNumber(name, labels); err != nil {
		return err
	}
	return errorOf(hostCount(name, by, labels))
}

// Gauge sets a gauge, which is shown as `anabranch_guest_<name>`.
func Gauge(name string, value float64, labels ...Label) error {
	if err := isNumber(name, labels); err != nil {
		return err
	}
	return errorOf(hostGauge(name, value, labels))
}

// isNumber looks at the texts of a number.
func isNumber(name string, labels []Label) error {
	if err := isText("the name of a number", name); err != nil {
		return err
	}
	for _, label := range labels {
		if err := isText("the name of a label", label.Name); err != nil {
			return err
		}
		if err := isText("the value of a label", label.Value); err != nil {
			return err
		}
	}
	return nil
}
