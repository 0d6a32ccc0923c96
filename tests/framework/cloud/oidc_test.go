package cloud_test

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/stack-controller/stack-controller/tests/framework/cloud"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// subject is the ServiceAccount whose tokens are trusted.
const subject = "system:serviceaccount:team:network"

// loginFixture is the pulumi CLI alone, with a service that trusts an issuer, and a file with a token of that issuer.
type loginFixture struct {
	*WithT
	t       *testing.T
	service *cloud.Server
	issuer  *cloud.Issuer
	url     string
	pulumi  string
	dir     string
	env     map[string]string
}

func newLoginFixture(t *testing.T) *loginFixture {
	t.Helper()
	t.Parallel()
	f := &loginFixture{WithT: NewWithT(t), t: t, service: cloud.New(""), dir: t.TempDir()}
	server := httptest.NewServer(f.service)
	t.Cleanup(server.Close)
	f.url = server.URL
	var err error
	f.issuer, err = cloud.NewIssuer()
	f.Expect(err).NotTo(HaveOccurred())
	f.pulumi, err = tools.Path(t.Context(), "pulumi", nil)
	f.Expect(err).NotTo(HaveOccurred())
	f.env = map[string]string{"HOME": f.dir, "PULUMI_HOME": filepath.Join(f.dir, "home"), "PULUMI_CREDENTIALS_PATH": f.dir, "PATH": os.Getenv("PATH"),
		"PULUMI_SKIP_UPDATE_CHECK": "true", "PULUMI_CREDENTIAL_HELPER": "none", "PULUMI_CREDENTIAL_STORE": "plaintext"}
	f.Expect(os.WriteFile(filepath.Join(f.dir, "Pulumi.yaml"), []byte("name: page\nruntime: yaml\n"), 0o600)).To(Succeed())
	f.trust(cloud.Trust{})
	f.write(subject, time.Hour)
	return f
}

// trust makes the service trust the issuer.
func (f *loginFixture) trust(trust cloud.Trust) {
	trust.Organization, trust.Subject, trust.Key = cloud.User, subject, f.issuer.Key()
	f.service.Trust(trust)
}

// write writes a token into the file.
func (f *loginFixture) write(subject string, valid time.Duration) {
	f.t.Helper()
	token, err := f.issuer.Token(subject, cloud.User, valid)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(os.WriteFile(filepath.Join(f.dir, "token"), []byte(token+"\n"), 0o600)).To(Succeed())
}

// run returns the exit code and what the CLI prints.
func (f *loginFixture) run(args ...string) (code int, output string) {
	f.t.Helper()
	cmd := exec.CommandContext(f.t.Context(), f.pulumi, append(args, "--non-interactive")...)
	cmd.Dir, cmd.Env = f.dir, []string{}
	for _, name := range slices.Sorted(maps.Keys(f.env)) {
		cmd.Env = append(cmd.Env, name+"="+f.env[name])
	}
	printed, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), string(printed)
	}
	f.Expect(err).NotTo(HaveOccurred())
	return 0, string(printed)
}

// login logs in with the token in the file.
func (f *loginFixture) login(args ...string) (code int, output string) {
	f.t.Helper()
	return f.run(append([]string{"login", f.url, "--oidc-token=file://" + filepath.Join(f.dir, "token")}, args...)...)
}

const organization = "--oidc-org=" + cloud.User

func TestPulumiExchangesATokenInAFileForAnAccessToken(t *testing.T) {
	f := newLoginFixture(t)
	code, output := f.login(organization)
	f.Expect(code).To(BeZero(), output)
	f.Expect(f.service.Requests()).To(ContainElements("POST /api/oauth/token", "GET /api/user"))
	exchanges := f.service.Exchanges()
	f.Expect(exchanges).To(HaveLen(1))
	f.Expect(exchanges[0]).To(And(HaveField("Type", "organization"), HaveField("Scope", ""), HaveField("Expiration", 2*time.Hour)))
	f.Expect(output).NotTo(ContainSubstring(exchanges[0].AccessToken))

	path := filepath.Join(f.dir, "credentials.json")
	info, err := os.Stat(path)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
	content, err := os.ReadFile(path)
	f.Expect(err).NotTo(HaveOccurred())
	var kept struct {
		Accounts map[string]map[string]any `json:"accounts"`
	}
	f.Expect(json.Unmarshal(content, &kept)).To(Succeed())
	f.Expect(kept.Accounts[f.url]).To(HaveKeyWithValue("accessToken", exchanges[0].AccessToken))
	f.Expect(kept.Accounts[f.url]["tokenInformation"]).To(HaveKey("expiresAt"))
	f.Expect(kept.Accounts[f.url]).NotTo(HaveKey("refreshToken"), "nothing renews the access token")
	code, output = f.run("stack", "ls")
	f.Expect(code).To(BeZero(), output)
}

func TestPulumiAsksForATokenOfATeamOrAUser(t *testing.T) {
	f := newLoginFixture(t)
	for scope, tt := range map[string]struct{ flag, kind string }{
		"team:network": {"--oidc-team=network", "team"}, "user:alice": {"--oidc-user=alice", "personal"},
	} {
		f.trust(cloud.Trust{Scope: scope})
		code, output := f.login(organization, tt.flag, "--oidc-expiration=90m0s")
		f.Expect(code).To(BeZero(), output)
		exchanges := f.service.Exchanges()
		f.Expect(exchanges[len(exchanges)-1]).To(And(HaveField("Type", tt.kind), HaveField("Scope", scope), HaveField("Expiration", 90*time.Minute)))
	}
	code, output := f.login(organization, "--oidc-team=network", "--oidc-user=alice")
	f.Expect(code).NotTo(BeZero(), output)
}

func TestPulumiSaysWhyItDoesNotLogIn(t *testing.T) {
	f := newLoginFixture(t)
	code, output := f.login()
	f.Expect(code).To(Equal(1))
	f.Expect(output).To(ContainSubstring("organization must be specified for token exchange"))

	f.env["PULUMI_ACCESS_TOKEN"] = "pul-another"
	code, output = f.login(organization)
	f.Expect(code).To(Equal(1))
	f.Expect(output).To(ContainSubstring("cannot perform token exchange when an access token is set as environment variable"))
	delete(f.env, "PULUMI_ACCESS_TOKEN")

	f.write("system:serviceaccount:team:other", time.Hour)
	code, output = f.login(organization)
	f.Expect(code).To(Equal(1), "not 3, as for other credentials that are refused")
	f.Expect(output).To(MatchRegexp(`OIDC token exchange failed: \{"code":401,`))

	f.write(subject, -time.Minute)
	code, output = f.login(organization)
	f.Expect(code).To(Equal(1))
	f.Expect(output).To(ContainSubstring("the token has expired"))

	f.Expect(os.Remove(filepath.Join(f.dir, "token"))).To(Succeed())
	code, output = f.login(organization)
	f.Expect(code).To(Equal(1))
	f.Expect(output).To(ContainSubstring("OIDC token exchange failed: Failed to read OIDC token"))
	f.Expect(f.service.Exchanges()).To(BeEmpty())
}

func TestPulumiMisleadsWhenTheAccessTokenHasExpired(t *testing.T) {
	f := newLoginFixture(t)
	f.trust(cloud.Trust{Expired: true})
	code, output := f.login(organization)
	f.Expect(code).To(BeZero(), output)
	code, output = f.run("preview", "--stack=dev")
	f.Expect(code).To(Equal(3))
	f.Expect(output).To(ContainSubstring("PULUMI_ACCESS_TOKEN must be set for login"))
}
