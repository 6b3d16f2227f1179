// Reads tokens that msk_auth issued, by their published key set alone; then issues one for each algorithm.
import { createLocalJWKSet, exportJWK, generateKeyPair, jwtVerify, SignJWT } from "jose";
import { text } from "node:stream/consumers";

const given = JSON.parse(await text(process.stdin));
const read = [];
for (const { token, jwks, algorithm } of given.tokens) {
  const verified = await jwtVerify(token, createLocalJWKSet(jwks), {
    algorithms: [algorithm],
    issuer: given.issuer,
    audience: given.audience,
    typ: "at+jwt",
    currentDate: new Date(given.now * 1000),
  });
  read.push({ header: verified.protectedHeader, claims: verified.payload });
}
const issued = [];
for (const algorithm of given.algorithms) {
  const { privateKey, publicKey } = await generateKeyPair(algorithm, { extractable: true });
  const token = await new SignJWT({ client_id: "node" })
    .setProtectedHeader({ alg: algorithm, kid: algorithm, typ: "at+jwt" })
    .setIssuer(given.issuer)
    .setAudience(given.audience)
    .setSubject("ann")
    .setIssuedAt(given.now)
    .setExpirationTime(given.now + 600)
    .sign(privateKey);
  issued.push({ token, algorithm, jwk: { ...(await exportJWK(publicKey)), kid: algorithm } });
}
console.log(JSON.stringify({ read, issued }));
