package operation_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stack-controller/stack-controller/internal/agent/agentpb"
	runner "github.com/stack-controller/stack-controller/internal/agent/operation"
	"github.com/stack-controller/stack-controller/tests/framework/cloud"
	"github.com/stack-controller/stack-controller/tests/framework/programs"
)

const (
	unauthenticated = agentpb.FailureReason_FAILURE_REASON_UNAUTHENTICATED
	configInvalid   = agentpb.FailureReason_FAILURE_REASON_CONFIG_INVALID

	loginSubject = "system:serviceaccount:team:network"
)

// loginFixture is a fixture whose operations log in to a stand-in for Pulumi Cloud.
type loginFixture struct {
	*fixture
	service *cloud.Server
	url     string
	issuer  *cloud.Issuer
	token   string
}

// newLoginFixture returns a fixture as in a pod, where people work beside the agent.
func newLoginFixture(t *testing.T) *loginFixture {
	t.Helper()
	f := &loginFixture{service: cloud.New("")}
	f.fixture = newFixture(t, func(options *runner.Options) { options.Workspace = filepath.Join(options.Home, "workspace") })
	server := httptest.NewServer(f.service)
	t.Cleanup(server.Close)
	f.url, f.token = server.URL, filepath.Join(t.TempDir(), "token")
	var err error
	f.issuer, err = cloud.NewIssuer()
	f.Expect(err).NotTo(HaveOccurred())
	f.trust(cloud.Trust{})
	f.renew(loginSubject)
	f.write("Pulumi.yaml", simpleProgram)
	return f
}

func (f *loginFixture) trust(trust cloud.Trust) {
	trust.Organization, trust.Subject, trust.Scope, trust.Key = cloud.User, loginSubject, "team:network", f.issuer.Key()
	f.service.Trust(trust)
}

// renew replaces the token in the file, as the kubelet does, and returns it.
func (f *loginFixture) renew(subject string) string {
	f.t.Helper()
	token, err := f.issuer.Token(subject, cloud.User, time.Hour)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(os.WriteFile(f.token, []byte(token+"\n"), 0o600)).To(Succeed())
	return token
}

// byOIDC makes an operation log in as the team, to the stand-in.
func (f *loginFixture) byOIDC(request *agentpb.StartOperationRequest) {
	request.Env = []*agentpb.EnvironmentVariable{variable("PULUMI_BACKEND_URL", f.url, false)}
	request.Login = &agentpb.PulumiCloudLogin{
		Organization: cloud.User, Team: "network", Expiration: durationpb.New(90 * time.Minute), TokenFile: f.token,
	}
}

// expectNoTokens looks for all tokens in the log, the files that are left, and the operations.
func (f *loginFixture) expectNoTokens(operations ...*agentpb.Operation) {
	f.t.Helper()
	token, err := os.ReadFile(f.token)
	f.Expect(err).NotTo(HaveOccurred())
	places := f.logged.String() + f.readAll(f.home, "")
	for _, operation := range operations {
		places += operation.String()
	}
	for _, part := range append([]string{cloud.IssuedPrefix}, strings.Split(strings.TrimSpace(string(token)), ".")[1:]...) {
		f.Expect(strings.Contains(places, part)).To(BeFalse(), "a token is visible")
	}
}

func TestEachOperationLogsInAndNothingOfThatStays(t *testing.T) {
	f := newLoginFixture(t)
	first := f.succeed(up, f.byOIDC)
	f.Expect(f.processes()).To(ContainElement("login " + f.url + " --oidc-token=file://" + f.token + " --oidc-org=acme --oidc-team=network --oidc-expiration=1h30m0s"))
	f.renew(loginSubject)
	second := f.succeed(up, f.byOIDC)
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("login "), HavePrefix("up ")), "one process more")
	exchanges := f.service.Exchanges()
	f.Expect(exchanges).To(HaveLen(2))
	for _, exchange := range exchanges {
		f.Expect(exchange).To(And(HaveField("Type", "team"), HaveField("Scope", "team:network"), HaveField("Expiration", 90*time.Minute)))
	}
	f.Expect(exchanges[0].AccessToken).NotTo(Equal(exchanges[1].AccessToken))
	credentials, err := filepath.Glob(filepath.Join(f.home, ".automation", "stacks", "*", "credentials"))
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(credentials).To(BeEmpty())
	f.expectNoTokens(first, second)
}

func TestLoginIsForTheOperationOnlyWhateverTheUserSets(t *testing.T) {
	f := newLoginFixture(t)
	shared := t.TempDir()
	f.succeed(up, f.byOIDC, withEnv("PULUMI_CREDENTIALS_PATH", shared, false), withEnv("PULUMI_CREDENTIAL_STORE", "os", false), withEnv("PULUMI_ACCESS_TOKEN", "", false))
	left, err := os.ReadDir(shared)
	f.Expect(err).NotTo(HaveOccurred())
	f.Expect(left).To(BeEmpty())
	f.Expect(filepath.Join(f.home, ".pulumi", "credentials.json")).NotTo(BeAnExistingFile())
}

// The program of a user may print what it finds.
func TestTokensAreHiddenWhereverPulumiPrintsThem(t *testing.T) {
	f := newLoginFixture(t)
	f.succeed(up, f.byOIDC)
	const prints = `case "$2" in login) exec ` + "%[2]s" + ` "$@";; esac
echo "error: $(tr -d '\n' < "$PULUMI_CREDENTIALS_PATH/credentials.json") and $(cat %[3]s)" >&2
exit 1
`
	script := strings.NewReplacer("%[2]s", tool(t, "pulumi"), "%[3]s", f.token).Replace(prints)
	f.writeCLI([]byte("#!/bin/sh\n" + script))
	operation := f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, up, f.byOIDC)
	f.Expect(operation.GetMessage()).To(ContainSubstring("accessToken"), "this is what the CLI printed")
	f.expectNoTokens(operation)
}

func TestRefusedLoginNamesWhatPulumiCloudHasToTrust(t *testing.T) {
	f := newLoginFixture(t)
	f.renew("system:serviceaccount:team:another")
	operation := f.fail(unauthenticated, up, f.byOIDC)
	f.Expect(operation.GetMessage()).To(Equal("Pulumi Cloud refused the login by OIDC as team network of the organization acme: Unauthorized: the subject is not allowed. " +
		"The organization acme needs an OIDC issuer https://cluster.test with a policy that allows team network of the organization acme for the audience urn:pulumi:org:acme " +
		"and the subject system:serviceaccount:team:another, and a maximum expiration of at least 1h30m0s"))
	f.Expect(f.processes()).To(HaveExactElements(HavePrefix("login ")))
	f.expectNoTokens(operation)

	f.renew(loginSubject)
	f.trust(cloud.Trust{MaxExpiration: time.Hour})
	f.Expect(f.fail(unauthenticated, up, f.byOIDC).GetMessage()).To(ContainSubstring("the expiration is more than 1h0m0s"))

	f.Expect(os.WriteFile(f.token, []byte("canary-file"), 0o600)).To(Succeed())
	f.Expect(f.fail(unauthenticated, up, f.byOIDC).GetMessage()).To(HaveSuffix(f.token + " has no token of a ServiceAccount"))
	f.Expect(os.Remove(f.token)).To(Succeed())
	f.Expect(f.fail(unauthenticated, up, f.byOIDC).GetMessage()).To(ContainSubstring("the pod has no token of its ServiceAccount in " + f.token))
}

func TestExpiredAccessTokenIsSaidToBeOneOfTheLogin(t *testing.T) {
	f := newLoginFixture(t)
	f.succeed(up, f.byOIDC)
	f.trust(cloud.Trust{Expired: true})
	operation := f.fail(unauthenticated, up, f.byOIDC)
	f.Expect(operation.GetMessage()).To(And(
		HavePrefix("the access token of the login by OIDC to Pulumi Cloud as team network of the organization acme expired at 20"),
		ContainSubstring("raise pulumiCloud.oidc.expiration"), ContainSubstring("PULUMI_ACCESS_TOKEN must be set")))
	f.expectNoTokens(operation)
}

func TestAccessTokenThatIsRevokedIsSaidToBeOneOfTheLogin(t *testing.T) {
	f := newLoginFixture(t)
	f.succeed(up, f.byOIDC)
	f.writeCLI([]byte("#!/bin/sh\ncase \"$2\" in login) exec " + tool(t, "pulumi") + " \"$@\";; esac\n" +
		"echo 'error: Unauthorized: No credentials provided or are invalid.' >&2\nexit 3\n"))
	operation := f.fail(unauthenticated, up, f.byOIDC)
	f.Expect(operation.GetMessage()).To(Equal("Pulumi Cloud does not accept the access token of the login by OIDC as team network of the organization acme: " +
		"Unauthorized: No credentials provided or are invalid."))
}

// The engine needs the access token for each secret that it stores, and cannot record what it has done without.
func TestAccessTokenThatIsRevokedWhilePulumiWorksIsSaidToBeOneOfTheLogin(t *testing.T) {
	f := newLoginFixture(t)
	f.succeed(up, f.byOIDC)
	f.Expect(programs.PutProvider(t.Context(), filepath.Join(f.home, ".pulumi"))).Error().NotTo(HaveOccurred())
	until := filepath.Join(t.TempDir(), "released")
	f.sleep(fmt.Sprintf("until: %q", until))
	f.write("Pulumi.yaml", f.readAll(f.project, "Pulumi.yaml")+"outputs: {hidden: {\"fn::secret\": \"${slow.id}\"}}\n")
	_, ended := f.start(f.byOIDC)
	f.service.Revoke()
	f.Expect(os.WriteFile(until, nil, 0o600)).To(Succeed())
	operation := f.await(ended)
	f.Expect(operation.GetFailure()).To(Equal(unauthenticated), operation.GetMessage())
	f.Expect(operation.GetMessage()).To(And(HavePrefix("Pulumi Cloud does not accept the access token of the login by OIDC as team network of the organization acme: "),
		ContainSubstring("this command requires logging in")))
	f.succeed(up, f.byOIDC)
	f.expectNoTokens(operation)
}

// The Stack tries again.
func TestLoginToACloudThatIsNotWellIsNoMatterOfCredentials(t *testing.T) {
	f := newLoginFixture(t)
	broken := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, _ *http.Request) {
		response.WriteHeader(http.StatusForbidden) // the CLI repeats other requests for a minute
		_, _ = response.Write([]byte(`{"code": 503, "message": "Service Unavailable"}`))
	}))
	t.Cleanup(broken.Close)
	elsewhere := func(url string) func(*agentpb.StartOperationRequest) {
		return func(request *agentpb.StartOperationRequest) {
			request.Env[0] = variable("PULUMI_BACKEND_URL", url, false)
		}
	}
	operation := f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, up, f.byOIDC, elsewhere(broken.URL))
	f.Expect(operation.GetMessage()).To(And(HavePrefix("cannot log in to Pulumi Cloud by OIDC: "), ContainSubstring("Service Unavailable")))
	operation = f.fail(agentpb.FailureReason_FAILURE_REASON_UPDATE_FAILED, up, f.byOIDC, elsewhere("http://127.0.0.1:1"))
	f.Expect(operation.GetMessage()).To(And(HavePrefix("cannot log in to Pulumi Cloud by OIDC: "), ContainSubstring("connection refused")))
}

func TestLoginThatCannotWorkIsRefusedBeforeAnyProcessStarts(t *testing.T) {
	f := newLoginFixture(t)
	for _, tt := range []struct {
		change func(*agentpb.StartOperationRequest)
		says   string
	}{
		{withEnv("PULUMI_ACCESS_TOKEN", "pul-another", true), "has PULUMI_ACCESS_TOKEN, and pulumiCloud.oidc needs that it is not set"},
		{withEnv("PULUMI_BACKEND_URL", "file://"+f.state, false), "the stack has another backend"},
	} {
		f.Expect(f.fail(configInvalid, up, f.byOIDC, tt.change).GetMessage()).To(ContainSubstring(tt.says))
	}
	f.writeCLI([]byte("#!/bin/sh\necho v3.208.0\n"))
	f.restart()
	f.Expect(f.fail(configInvalid, up, f.byOIDC).GetMessage()).To(ContainSubstring("pulumi login has no flag --oidc-token before v3.209.0, and the CLI is v3.208.0"))
	f.Expect(f.processes()).To(BeEmpty())
	f.Expect(f.service.Requests()).To(BeEmpty())
}

func TestPlanStaysGoodWhenTheTokenIsRenewedAndNotForAnotherTeam(t *testing.T) {
	f := newLoginFixture(t)
	f.succeed(up, f.byOIDC)
	f.write("Pulumi.yaml", strings.Replace(simpleProgram, "outputs:", "outputs:\n  planned: 1", 1))
	plan := f.succeed(preview, f.byOIDC, saved)
	f.renew(loginSubject)
	f.fail(planStale, plannedUp, f.byOIDC, f.carriesOut(plan), func(request *agentpb.StartOperationRequest) { request.Login.Team = "another" })
	f.succeed(plannedUp, f.byOIDC, f.carriesOut(plan), func(request *agentpb.StartOperationRequest) {
		request.Login.Expiration = durationpb.New(2 * time.Hour)
	})
}
