package monitoring_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/stack-controller/stack-controller/tests/suite"
)

// dashboard is what the test reads of a dashboard of Grafana.
type dashboard struct {
	UID    string `json:"uid"`
	Title  string `json:"title"`
	Panels []struct {
		Title   string `json:"title"`
		Type    string `json:"type"`
		Targets []struct {
			Expr string `json:"expr"`
		} `json:"targets"`
		GridPos struct {
			W, H, X, Y int
		} `json:"gridPos"`
	} `json:"panels"`
	Templating struct {
		List []struct {
			Name       string `json:"name"`
			Type       string `json:"type"`
			Definition string `json:"definition"`
		} `json:"list"`
	} `json:"templating"`
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	g := NewWithT(t)
	paths, err := filepath.Glob(inRepository("config", "monitoring", "dashboards", "*.json"))
	g.Expect(err).NotTo(HaveOccurred())
	all := map[string]dashboard{}
	for _, path := range paths {
		content, err := os.ReadFile(path)
		g.Expect(err).NotTo(HaveOccurred())
		var board dashboard
		g.Expect(json.Unmarshal(content, &board)).To(Succeed(), path)
		all[filepath.Base(path)] = board
	}
	g.Expect(all).To(HaveLen(3))
	return all
}

func TestEveryQueryOfTheDashboardsHasData(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	awaitFailure(t)
	fill := strings.NewReplacer("$__rate_interval", "10s", "$namespace", healthy, "$name", healthy)
	for file, board := range dashboards(t) {
		for _, panel := range board.Panels {
			for _, target := range panel.Targets {
				t.Run(file+"/"+panel.Title, func(t *testing.T) {
					g := NewWithT(t)
					query := fill.Replace(target.Expr)
					g.Expect(query).NotTo(ContainSubstring("$"), "a variable that the test does not know")
					eventually(g, func() ([]sample, error) { return observed.query(t.Context(), query) }).ShouldNot(BeEmpty(), query)
				})
			}
		}
	}
}

func TestQueriesOfTheGuideHaveData(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	guide, err := os.ReadFile(inRepository("docs", "guides", "monitoring.md"))
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	queries := regexp.MustCompile("(?m)^\\| ([^|]*\\?) \\| `(.*)` \\|$").FindAllStringSubmatch(string(guide), -1)
	NewWithT(t).Expect(queries).To(HaveLen(5))
	for _, found := range queries {
		t.Run(found[1], func(t *testing.T) {
			g := NewWithT(t)
			query := strings.ReplaceAll(found[2], "[1h]", "[10s]")
			eventually(g, func() ([]sample, error) { return observed.query(t.Context(), query) }).ShouldNot(BeEmpty(), query)
		})
	}
}

func TestVariablesOfTheDashboardsHaveTheStack(t *testing.T) {
	suite.Long(t, "needs Prometheus")
	g := NewWithT(t)
	variables := 0
	for _, board := range dashboards(t) {
		for _, variable := range board.Templating.List {
			if variable.Type == "datasource" {
				continue
			}
			variables++
			inside, isValues := strings.CutPrefix(variable.Definition, "label_values(")
			g.Expect(isValues).To(BeTrue(), variable.Definition)
			separator := strings.LastIndex(inside, ",")
			series, label := inside[:separator], strings.Trim(inside[separator:], ", )")
			eventually(g, func() ([]sample, error) {
				return observed.query(t.Context(), strings.ReplaceAll(series, "$namespace", healthy))
			}).
				Should(ContainElement(HaveField("Labels", HaveKeyWithValue(label, healthy))))
		}
	}
	g.Expect(variables).To(Equal(2))
}

func TestPanelsOfTheDashboardsDoNotOverlap(t *testing.T) {
	for file, board := range dashboards(t) {
		t.Run(file, func(t *testing.T) {
			g := NewWithT(t)
			g.Expect(board.UID + ".json").To(Equal(file))
			taken := map[[2]int]string{}
			for _, panel := range board.Panels {
				at := panel.GridPos
				g.Expect(at.X+at.W).To(BeNumerically("<=", 24), panel.Title)
				for x := at.X; x < at.X+at.W; x++ {
					for y := at.Y; y < at.Y+at.H; y++ {
						g.Expect(taken).NotTo(HaveKey([2]int{x, y}), "%s and %s", panel.Title, taken[[2]int{x, y}])
						taken[[2]int{x, y}] = panel.Title
					}
				}
				if panel.Type != "row" {
					g.Expect(panel.Targets).NotTo(BeEmpty(), panel.Title)
				}
			}
		})
	}
}
