package monitoring_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/controlplane"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/suite"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// Prometheus scrapes as with the PodMonitor, but much more often. The alerts fire without delay.
const prometheusConfig = `
global: {scrape_interval: 500ms, scrape_timeout: 500ms, evaluation_interval: 500ms}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: flux-system/stack-controller
    honor_labels: true
    static_configs: [{targets: [CONTROLLER], labels: {namespace: flux-system, pod: stack-controller}}]
  - job_name: monitoring/kube-state-metrics
    static_configs: [{targets: [OBJECTS], labels: {namespace: monitoring, pod: kube-state-metrics}}]
`

// prometheus is a running Prometheus.
type prometheus struct {
	address string
	dir     string
}

// startPrometheus starts Prometheus, which scrapes the controller and the metrics that stand in for kube-state-metrics at the address.
func startPrometheus(ctx context.Context, on *localsystem.System, objects string) (*prometheus, error) {
	path, err := tools.Path(ctx, "prometheus", func(line string) { fmt.Fprintln(os.Stderr, line) })
	if err != nil {
		return nil, err
	}
	p := &prometheus{dir: filepath.Join(on.Dir, "prometheus")}
	if p.address, err = on.ControlPlane.FreeAddress(); err != nil {
		return nil, err
	}
	rules, err := ruleGroups(func(rule map[string]any) { rule["for"] = "1s" })
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, err
	}
	config := strings.NewReplacer("CONTROLLER", on.MetricsAddr, "OBJECTS", objects).Replace(prometheusConfig)
	for name, content := range map[string][]byte{"prometheus.yml": []byte(config), "rules.yaml": rules} {
		if err := os.WriteFile(filepath.Join(p.dir, name), content, 0o600); err != nil {
			return nil, err
		}
	}
	_, err = on.ControlPlane.StartServer(ctx, controlplane.Server{
		Name: "prometheus",
		Path: path,
		Args: []string{
			"--config.file=prometheus.yml", "--storage.tsdb.path=data", "--storage.tsdb.retention.time=1h", "--web.listen-address=" + p.address,
			"--log.level=warn",
		},
		Ready: on.ControlPlane.AnswersOK("http://" + p.address + "/-/ready"),
	})
	if err != nil {
		return nil, err
	}
	return p, p.awaitScrapes(ctx)
}

// awaitScrapes waits until both targets were scraped. Prometheus is ready seconds before that, and events in between do not appear in a
// rate.
func (p *prometheus) awaitScrapes(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		scraped, err := p.query(ctx, "up == 1")
		if err == nil && len(scraped) == 2 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("prometheus has scraped %v: %w", scraped, errors.Join(context.Cause(ctx), err))
		case <-time.After(pollInterval):
		}
	}
}

// sample is the last value of a series in the result of a query.
type sample struct {
	Labels map[string]string
	Value  float64
}

// queryWindow is the time in which a query must have had a value. Most queries are rates, which have no value while nothing happens.
const queryWindow = 2 * time.Minute

// query returns the last value, other than NaN, of each series that had one in the window.
func (p *prometheus) query(ctx context.Context, expression string) ([]sample, error) {
	now := time.Now()
	var data struct {
		Result []struct {
			Metric map[string]string `json:"metric"`
			Values [][2]any          `json:"values"`
		} `json:"result"`
	}
	err := p.get(ctx, "query_range", url.Values{
		"query": {expression}, "step": {"1"},
		"start": {strconv.FormatInt(now.Add(-queryWindow).Unix(), 10)}, "end": {strconv.FormatInt(now.Unix()+1, 10)},
	}, &data)
	if err != nil {
		return nil, err
	}
	var samples []sample
	for _, series := range data.Result {
		found := false
		last := sample{Labels: series.Metric}
		for _, pair := range series.Values {
			text, isText := pair[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			if isText && err == nil && value == value {
				found, last.Value = true, value
			}
		}
		if found {
			samples = append(samples, last)
		}
	}
	return samples, nil
}

// alert is an alert in the API of Prometheus.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	State       string            `json:"state"`
}

// firing returns the alerts of the name that fire.
func (p *prometheus) firing(ctx context.Context, name string) (firing []alert, err error) {
	var data struct {
		Alerts []alert `json:"alerts"`
	}
	if err := p.get(ctx, "alerts", nil, &data); err != nil {
		return nil, err
	}
	for _, found := range data.Alerts {
		if found.Labels["alertname"] == name && found.State == "firing" {
			firing = append(firing, found)
		}
	}
	return firing, nil
}

// get decodes the response of Prometheus' API.
func (p *prometheus) get(ctx context.Context, path string, parameters url.Values, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/api/v1/"+path+"?"+parameters.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status string          `json:"status"`
		Error  string          `json:"error"`
		Data   json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("read the answer of Prometheus: %w: %s", err, body)
	}
	if answer.Status != "success" {
		return fmt.Errorf("prometheus: %s", answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

// The counters of the restarted controller begin at zero, so this test comes after those that read them.
func TestAlertFiresWhileTheControllerIsDown(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	g := NewWithT(t)
	firing := func() ([]alert, error) { return observed.firing(t.Context(), "StackControllerDown") }
	// Prometheus expects the restarted controller at the same address.
	address := system.MetricsAddr
	g.Expect(system.StopController()).To(Succeed())
	eventually(g, firing).Should(HaveLen(1))
	g.Expect(system.StartController(t.Context(), "--metrics-addr="+address)).To(Succeed())
	eventually(g, firing).Should(BeEmpty())
}
