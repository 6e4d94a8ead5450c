"""Tools of the home: lights, devices, heating, locks, music, films, food."""

from executors.tiny.data.tool_kind import read_kinds

HOME = read_kinds("""
light: turn_on_light light_on switch_on_light lights_on turn_on_lights
[Turn|Switch] on the light[s|] in a room[.|]; Light switch; Lights on in a dark room; Makes a room bright; Light up a room
room/location/area:room
[turn|switch|put] on the light[s|] in the {0}; [turn|switch] the {0} light[s|] on; make it bright in the {0}; ~light[s|] on in the {0}; ~it[ is|'s] [too |very |]dark in the {0}[|, I need light]; ~it[ is|'s] dark, [switch|turn] on the {0} light
~lights on, {0}; ~I need [some |]light in the {0}; light up the {0}; ~{0} light on; [switch|turn] on the {0} light[s|]; illuminate the {0}; let there be light in the {0}; let me have some light in the {0}; make the {0} bright
~[can|could] you turn on the light[s|] in the {0}; ~can you switch the {0} light[s|] on; ~light in the {0}, please; ~{0} lights on, please; ~the {0} is [too |very |]dark, turn on the light; ~I cannot see in the {0}, switch on the light; ~I can't see anything in the {0}, lights on; ~I am in the {0} and it is dark; ~I'm going to the {0}, put the light on
put the {0} light[s|] on; ~have the light[s|] on in the {0}; ~the {0} needs [some |]light; ~the light in the {0} should be on; ~I want the {0} bright; illuminate the {0}, please; ~someone is in the {0}, lights on; turn the lights on in the {0}; switch the light on in the {0}
let it be bright in the {0}; let the light in the {0} be on

light: set_light control_light light_control toggle_light switch_light
[Control|Set|Switch] [a|the] light[.|]; Lights on or off; Turn the light of a room on or off
room/location:room state/status/action:switch
turn {1} the light[s|] in the {0}; [turn|switch] the {0} light[s|] {1}; switch {1} the {0} light[s|]; ~{0} light[s|] {1}; ~lights {1} in the {0}; ~I want the {0} light[s|] {1}; set the {0} light to {1}
turn {1} the {0} light[s|]; turn the lights {1} in the {0}; switch the light {1} in the {0}; switch {1} the lights in the {0}; put the {0} light[s|] {1}; put the light in the {0} {1}; set the lights in the {0} to {1}; ~light {1} in the {0}; ~lights {1}, {0}; ~{0}: light[s|] {1}
~[can|could] you turn {1} the light[s|] in the {0}; ~can you switch {1} the {0} light[s|]; ~please have the {0} lights {1}; ~the light in the {0} should be {1}; ~the {0} lights [should|must] be {1}; ~I want the light in the {0} {1}; ~I need the {0} lights {1}; make sure the {0} light is {1}; change the {0} light to {1}; control the {0} light, turn it {1}
change the lights in the {0} to {1}; change the light in the {0} to {1}; set the light of the {0} to {1}; set the {0} lights {1}
change the {0} lights, turn them {1}; change the lights of the {0} to {1}

light: turn_off_light light_off switch_off_light lights_off
[Turn|Switch] off the light[s|] in a room[.|]; Lights off; Makes a room dark; Puts out the light where nobody is
room/location/area:room
[turn|switch] off the light[s|] in the {0}; [turn|switch] the {0} light[s|] off; ~it[ is|'s] too bright in the {0}; ~lights off in the {0}; ~nobody is in the {0}, turn off the light; make the {0} dark; kill the lights in the {0}
~{0} light[s|] off; ~lights off, {0}; ~{0} lights off, please; switch the lights off in the {0}; turn the light off in the {0}; turn off the {0} light[s|]; switch off the {0} light[s|]; put out the light[s|] in the {0}; put the {0} light[s|] out; kill the {0} light; ~the {0} is too bright, switch off the light
~[can|could] you turn off the light[s|] in the {0}; ~can you switch the {0} light[s|] off; ~I do not need light in the {0} any more; ~no light in the {0}, please; ~no more light in the {0}; ~I am leaving the {0}, lights off; ~I left the {0}, switch off the light; ~the {0} is empty, turn the light off; ~the light is still on in the {0}, switch it off; ~nobody needs the light in the {0}, turn it off; ~I want the {0} dark; make it dark in the {0}; ~I forgot the {0} light, turn it off
~we left the {0}, turn off the lights; ~I left the light on in the {0}, turn it off; ~I have left the {0}, lights off; ~the {0} is empty, lights off; ~there is an empty {0}, switch off the light; ~nobody is left in the {0}, turn the lights off; ~nobody needs light in the {0}; ~the {0} needs no light any more; ~I forgot to turn off the light in the {0}; ~we forgot the lights in the {0}, switch them off; ~it is much too bright in the {0}, lights off; ~too bright in the {0}, turn off the light

light: dim_light set_brightness dim_lights
[Dim|Set] the [brightness of a |]light[s|][.|]; Brightness control; Set how bright the light in a room is, in percent; Dim the lights of a room to a level
room/location:room brightness/level/percent:percent
[dim|set] the {0} light[s|] to {1}[| percent|%]; set the brightness in the {0} to {1}; ~{0} light at {1} percent; make the {0} lights {1} percent bright; [lower|raise] the light in the {0} to {1}; ~brightness {1} in the {0}
dim the light[s|] in the {0} to {1} percent; dim the {0} to {1} percent; dim the {0} to a brightness of {1}; set the light[s|] in the {0} to {1} percent; set the {0} brightness to {1}[| percent|%]; set the brightness of the {0} light to {1}; change the brightness in the {0} to {1}; change the {0} light to {1} percent; turn the {0} lights to {1} percent
[lower|raise] the {0} lights to {1} percent; [lower|raise] the brightness in the {0} to {1}; make the light in the {0} {1} percent bright; ~{0} brightness {1} percent; ~{0} lights: {1} percent; ~brightness in the {0}: {1}; ~light in the {0} at {1} percent; ~dim {0}, {1} percent
~[can|could] you dim the {0} light[s|] to {1} percent; ~can you set the brightness in the {0} to {1}; ~I want the {0} lights at {1} percent; ~I want {1} percent brightness in the {0}; ~the light in the {0} should be at {1} percent; ~it is too bright in the {0}, dim the light to {1}; ~it's too dark in the {0}, raise the light to {1} percent; put the {0} light at {1} percent; put the brightness in the {0} at {1}; turn the light in the {0} [up|down] to {1} percent
turn the {0} light down to {1} percent; turn the lights in the {0} down to {1}; turn down the {0} lights to {1} percent; turn the {0} lights [up|down] to {1}; dim down the {0} light to {1} percent

device: control_device switch_device set_device toggle_device smart_plug
[Control|Switch|Turn] a device [on or off|][.|]; Smart [home |]plug; Turn [a machine|something] on or off; Power a device on or off
device/name/device_name:device state/action/status:switch
[turn|switch] {1} the {0}; [turn|switch] the {0} {1}; ~the {0} should be {1}; ~{0} {1}; set the {0} to {1}; ~I want the {0} {1}[| now]; turn {1} my {0}; turn {1} our {0}; turn my {0} {1}
switch {1} my {0}; switch our {0} {1}; ~turn {0} {1}; ~switch {0} {1}; ~{0}: {1}; ~{0} {1}, please; ~please have the {0} {1}; ~the {0} [must|has to] be {1}; ~I need the {0} {1}; ~I would like to have the {0} {1}; ~I want the {0} to be {1}
~[can|could|would] you turn {1} the {0}; ~[can|could] you turn the {0} {1}; ~can you switch {1} the {0}; ~could you switch the {0} {1}; make sure the {0} is {1}; make sure that my {0} is {1}; put the {0} {1}; power {1} the {0}; power the {0} {1}; change the {0} to {1}; let the {0} be {1}; use the smart plug to turn {1} the {0}; switch the plug of the {0} {1}; turn the plug of the {0} {1}; ~the device {0} should be {1}; turn the device {0} {1}; set the device {0} to {1}
~the {0} must be {1}; ~my {0} must be {1}; ~my {0} has to be {1}; ~the {0} has to be switched {1}; power my {0} {1}; power {1} my {0}; make sure to turn {1} the {0}; let my {0} be {1}; ~let the {0} be turned {1}

heat: set_temperature set_thermostat thermostat heating
Set the [temperature|thermostat|heating][.|]; [Thermostat|Heating] control; Set the target temperature; Heat or cool [a room|the house] to some degrees; Make it warmer or colder
degrees/temperature/value/target:small room/zone:room?
set the [temperature|thermostat|heating] to {0}[| degrees]; make it {0} degrees[| in here]; [heat|cool] the [room|house|place] to {0} degrees; ~{0} degrees please; change the temperature to {0}; set the [temperature|heating] in the {1} to {0}[| degrees]
~it[ is|'s] [cold|freezing], set the heating to {0}; ~I want {0} degrees in here; [turn|put] the [heating|heat|thermostat] [up |down |]to {0}; ~thermostat {0}; ~can we have {0} degrees in here; ~temperature {0}; ~heating to {0}; ~thermostat to {0} degrees, please
~I am cold, turn the heat up to {0}; ~I'm freezing, make it {0} degrees; ~it's [too cold|freezing] in here, {0} degrees please; ~it is too [hot|warm] in here, cool it to {0} degrees; ~I am [hot|warm], turn the heating down to {0}; ~we want it at {0} degrees; [heat|warm] the house up to {0}; cool the place down to {0} degrees; warm the room to {0} degrees; [raise|lower] the temperature to {0}; [raise|lower] the heating to {0} degrees
~[can|could] you set the [temperature|thermostat] to {0}; ~can you make it {0} degrees in here; ~could you turn the heating to {0} degrees; change the [thermostat|heating] to {0} degrees; put the temperature at {0} degrees; ~I would like {0} degrees in the house; ~the house should have {0} degrees; ~the room should be {0} degrees; keep the [house|room|temperature] at {0} degrees; keep it at {0} degrees in here
make it {0} degrees in the {1}; [heat|warm|cool] the {1} to {0} degrees; ~I want {0} degrees in the {1}; ~{1} heating to {0}; turn the heating in the {1} [up|down] to {0}; ~temperature in the {1}: {0} degrees; ~it's cold in the {1}, set the heating to {0}; keep the {1} at {0} degrees; ~{0} degrees in the {1}, please; change the temperature in the {1} to {0}; ~can you set the {1} thermostat to {0}
~too hot in here, set it to {0} degrees; ~it's hot, cool the room to {0} degrees; ~it's too warm, [lower|turn down] the heating to {0}; put the heating on {0} degrees; put the thermostat at {0}

lock: lock_door lock door_lock
Lock a door[.|]; Door lock; Close and lock the door of a room; Make sure that a door is locked
door/name/room:room
lock the {0}[| door]; [make sure|check that] the {0} door is locked; close and lock the {0} door; ~{0} door lock; lock up the {0}; ~is the {0} locked? If not, lock it; lock the door [to|of] the {0}; ~{0} door: lock
lock my {0} door; lock our {0}; lock up the {0} door; close and lock the {0}; make sure that the {0} is locked; make sure you lock the {0}; check that the {0} is locked; ~the {0} door [should|must] be locked; ~the {0} must be locked; ~the {0} door is open, lock it; ~is the {0} door still open? Lock it; ~I forgot to lock the {0}; ~I forgot to lock the {0} door, please do it; ~I left the {0} open, lock it; ~[can|could] you lock the {0} door; ~can you lock up the {0}; ~could you close and lock the {0}; ~I want the {0} locked; ~I want the {0} door locked; keep the {0} door locked; see that the {0} is locked; ~lock, {0} door; put the lock on the {0} door
check that the door to the {0} is locked; check the {0} door and lock it; check whether the {0} is locked, if not lock it

music: play_music play_artist music play_songs
Play [songs|music] by an artist[.|]; [Music player|Plays an artist]; Listen to the songs of [a band|a singer]; Put on some music [by|of] an artist
artist/band/singer/artist_name:artist
play [some |]music by {0}; play [something|songs|a song] by {0}; ~I want to [hear|listen to] [some |]{0}; put on [some |]{0}; play [some |me |]{0}; ~I'm in the mood for {0}, play something; let me [hear|listen to] some {0}
~some music by {0}, please; let me [hear|listen to] {0}; can [I|we] [hear|listen to] {0}; [start|shuffle] [songs|music] [by|of|from] {0}; ~music by {0}; ~how about some music by {0}; ~songs by {0}; ~music: {0}; ~{0} songs, please
play songs [of|from] {0}; play something [of|from] {0}; play the [band|singer|artist] {0}; play the music of {0}; put on [music|songs] by {0}; put on something by {0}; put {0} on, I want to listen; shuffle {0}; shuffle the songs of {0}; start playing {0}; start the music of {0}
~[can|could] you play some {0}; ~can you play something by {0}; ~could you put on some {0}; ~I'd like to [hear|listen to] some music by {0}; ~I would like to hear {0}; ~I feel like listening to {0}; ~I am in the mood for some {0}, put something on; ~I love {0}, play some songs; ~we want to [hear|listen to] {0}; ~let us hear some songs by {0}; ~how about {0}, play a few songs; ~any song by {0}, please; play any song by {0}; play us some {0}; play a few songs by {0}
~I am in a {0} mood, play some songs; ~in the mood for songs by {0}; play any music by {0}; put on any songs by {0}

music: play_song play_music start_song play_track
Play a song[.|]; [Start a song|Music player]; Put on a track; Listen to a song by its title
song/title/track/song_name:song
play [the song |]{0}; [put on|start] the song {0}; ~I want to [hear|listen to] the song {0}; play {0} [please|for me|now]; ~song: {0}; can I hear [the song |]{0}; play the track [called |named |]{0}
play the song [called|named] {0}; play me the song {0}; play me {0}; put on the track {0}; put on the song called {0}; put the song {0} on; start the track {0}; start playing {0}; ~music track: {0}; ~the song {0}, please; ~the track {0}, please; let me hear the song {0}; let me hear {0}; let me listen to the song {0}
~[can|could] you play the song {0}; ~can you put on {0}; ~[can|could] you play {0}; can we [hear|listen to] the song {0}; can I listen to {0}; ~I'd like to [hear|listen to] {0}; ~I would like to hear the song called {0}; ~I want to hear {0}; ~I love the song {0}, play it; ~my favorite song is {0}, play it; play my favorite song, {0}; play the music track {0}; ~play: {0}; ~next song: {0}; ~the next song is {0}, play it; ~the next song should be {0}; make {0} the next song
start the song called {0}; let me hear the track {0}

music: play_song play_track play
Play a song by an artist[.|]; Plays [a track|a song]; Put on a song with its title and artist; Listen to a track of a [singer|band]
song/title/track:song artist/by/singer:artist
play {0} by {1}; play the [song|track] {0} by {1}; ~I want to hear {0} by {1}; put on {0} by {1}; play {1}'s song {0}; ~song {0}, artist {1}; ~{0} by {1}, please
play the song {0} from {1}; play me {0} by {1}; play the track {0} from the artist {1}; play the song called {0} by {1}; put on the [song|track] {0} by {1}; put on {1}'s song {0}; start {0} by {1}; start the song {0} by {1}; let me hear {0} by {1}; let me listen to {0} by {1}; ~song: {0} by {1}; ~track {0}, artist {1}; ~track: {0}, singer: {1}
~[can|could] you play {0} by {1}; ~can you put on {0} by {1}; can I hear the song {0} by {1}; can we listen to {0} by {1}; ~I'd like to [hear|listen to] {0} by {1}; ~I want to listen to the song {0} by {1}; ~I love {0} by {1}, play it; by the artist {1}, play the song {0}; from the singer {1}, play the song {0}; ~{1}: {0}, play that song; ~next song: {0} by {1}; ~the next song is {0} by {1}; play the artist {1}, song {0}
start playing {0} by {1}; let us hear the song {0} by {1}; start the track {0} by {1}

music: play_playlist start_playlist playlist
[Play|Start] a playlist[.|]; Playlists; Shuffle the songs of a playlist; Open a playlist by name and play it
name/playlist/playlist_name:title
[play|start|shuffle] [my|the] playlist {0}; [play|start|put on] my {0} playlist; ~playlist {0}; ~I want to hear my {0} playlist; open the playlist {0}; play [the list|the playlist] [called|named] {0}; shuffle the {0} playlist
~playlist: {0}; ~my {0} playlist, please; ~the playlist {0}, please; shuffle my playlist called {0}; start the playlist named {0}; play the {0} playlist; put on the playlist {0}; put my playlist {0} on; put on the {0} playlist; open my {0} playlist; open and play the playlist {0}; play all songs of the playlist {0}; play the songs in my {0} playlist
~[can|could] you play the playlist {0}; ~can you put on my {0} playlist; ~could you start my playlist {0}; can I hear my playlist {0}; let me hear the {0} playlist; let me listen to my playlist {0}; ~I'd like to [hear|listen to] the playlist {0}; ~I want to listen to my {0} playlist; ~I made a playlist called {0}, play it; ~I have a playlist named {0}, shuffle it; play music from my playlist {0}; play songs from the {0} playlist; ~list of songs called {0}, play it

music: pause_music stop_music pause stop_playback
[Pause|Stop] the music[.|]; Pause playback; Stop playing the song; Turn the music off; Halts the song that is playing
-
[pause|stop] the [music|song|playback]; stop playing; ~music off; ~silence, stop the music; [pause|stop] [this|that] song; turn off the music; ~no more music; pause; ~pause, please
stop playing music; stop playing this song; stop the track; pause the track; pause this track; turn the music off; switch off the music; switch the music off; ~music off, please; ~no more songs, please; ~no music now; end the music; end this song; end the playback; halt the music; halt the playback; hold the music; hold the song; cut the music
~[can|could] you [stop|pause] the music; ~can you turn off the music; ~could you stop playing; ~can you pause this song; ~enough music for today; ~that is enough music; ~enough, stop the song; ~I have heard enough, stop playing; ~I don't want to hear music any more; ~I don't want to listen to this song; ~I want silence, music off; ~I want the music to stop; ~I need silence, pause the music; ~quiet please, stop the music; ~be quiet, no more music; take a break from the music; ~music break; ~music pause, please; make the music stop; let's pause the song; ~wait, pause the song; ~someone is at the door, pause the music; ~the phone rings, stop the music

volume: set_volume volume change_volume
Set the [volume|sound level][.|]; [Volume|Sound] control; Turn the sound up or down; Make it louder or quieter, in percent
level/volume/percent:percent
set the volume to {0}[| percent|%]; [turn|change] the volume to {0}[| percent]; ~volume {0}; make the sound {0} percent; ~[sound|volume] at {0}; turn the [volume|sound] [up|down] to {0}; ~it's too [loud|quiet], set the volume to {0}
~volume: {0}; ~volume to {0} percent, please; ~sound level {0}; ~sound: {0} percent; set the sound [level |]to {0}[| percent|%]; set the level of the sound to {0}; change the sound level to {0}; put the [volume|sound] at {0}[| percent]; [raise|lower|reduce|increase] the volume to {0}; [raise|lower] the sound to {0} percent; bring the volume [up|down] to {0}; bring the sound down to {0} percent
~[can|could] you [set|turn] the volume to {0}; ~can you turn the sound [up|down] to {0}; ~could you [raise|lower] the volume to {0} percent; ~I want the volume at {0}; ~I'd like the sound at {0} percent; ~the volume should be {0}; ~the sound should be at {0} percent; ~it is too loud, [lower|reduce] the volume to {0}; ~it's too quiet, [raise|increase] the sound to {0}; ~I can't hear it, volume to {0}; ~I cannot hear anything, turn the volume up to {0}; make the volume {0} percent; make it louder, volume {0}; make it quieter, volume {0}; ~louder, volume at {0}; ~quieter, sound at {0}; adjust the volume to {0}; adjust the sound to {0} percent
change the volume to {0} percent; change the sound to {0}; bring the volume to {0} percent; bring the sound up to {0}; adjust the sound level to {0}; adjust the volume, {0} percent

video: play_video watch_video play_movie watch
Play a [video|movie|film][.|]; Video player; Watch a [film|movie]; Show a movie on the [TV|screen]
title/video/name:title
[play|start|show] the [video|movie|film] {0}; ~I want to watch {0}; put on the movie {0}; watch {0}; let me watch {0}; play {0} on [the TV|the big screen]; ~movie night: {0}; ~I want to see the [film|movie] {0}
~video: {0}; ~the video {0}, please; ~the film {0}, please; play the [video|film] called {0}; start the movie called {0}; put on the [film|video] {0}; put the movie {0} on the TV; put {0} on the big screen; show {0} on [the TV|the screen]; show me the video {0}; show us the film {0}; start {0} on the TV
~[can|could] you play the [movie|film|video] {0}; ~can you put on the film {0}; ~could you show the movie {0} on the TV; can we watch {0}; can I watch the video {0}; can I see the movie {0} on the screen; let us watch {0}; let's watch the movie {0}; let me see the video {0}; ~I'd like to watch {0}; ~I would like to see the film {0} on the big screen; ~we want to watch the movie {0}; ~tonight we watch {0}; ~it's movie night, play {0}; ~movie night with {0}; ~film night: {0}; ~film: {0}, play it; ~movie {0}, start it; stream the movie {0}; stream {0} on the TV; watch the video {0}; watch the film {0}
stream the video {0}; stream the film {0} on the TV; ~can you stream the movie {0}

movie: get_movie_info movie_info movie find_movie
[Get|Find] [information on|details of] a movie[.|]; Movie [database|details]; Who directed a film and who stars in it; What a movie is about and when it came out
title/movie/name:title
[tell me about|give me info on|find] the [movie|film] {0}; who [directed|stars in|plays in] {0}; is the [movie|film] {0} [any good|good|worth watching]; when did the [movie|film] {0} come out; ~movie info for {0}; what is the [movie|film] {0} about; ~details on the film {0}
give me [details|information] on the [movie|film] {0}; find [details|information] about the movie {0}; find info on the film {0}; look up the [movie|film] {0}; show me details of the movie {0}; ~info on the movie {0}; ~information on the film {0}; ~movie details: {0}; ~film info: {0}; ~director of the film {0}; ~the cast of the movie {0}
who directed the [movie|film] {0}; who is the director of the [movie|film] {0}; who stars in the [movie|film] {0}; who plays in the film {0}; who are the stars of the movie {0}; who is in the cast of the film {0}; which actors play in {0}; which actors are in the movie {0}; who are the actors in {0}; who made the film {0}; how long is the [movie|film] {0}; how good is the movie {0}; how old is the film {0}
in which year did the film {0} come out; what year did the movie {0} come out; what happens in the [movie|film] {0}; what is the story of the movie {0}; what is the plot of the film {0}; ~plot of the movie {0}; should I watch the movie {0}, is it good; is {0} a [good movie|good film]; is {0} a movie worth watching; do people like the movie {0}; ~[can|could] you tell me about the film {0}; ~can you find out who directed {0}; ~I want to know what the movie {0} is about; ~I need details on the movie {0}; ~I want to know more about the film {0}; ~is the film {0} worth it; what kind of movie is {0}; what kind of film is {0}; tell me the plot of the movie {0}; tell me the story of the film {0}
who was the director of the movie {0}; ~director of the movie {0}; which stars are in the film {0}; which stars play in the movie {0}; ~the stars of the film {0}

food: get_recipe find_recipe recipe search_recipes
[Get|Find] a recipe[ for a dish|][.|]; [Cooking recipes|Recipe search]; How to cook or prepare a dish; Ingredients and steps to make a dish
dish/food/name/query:dish
[find|show|give] [me |]a recipe for {0}; how do I [cook|make|prepare] {0}; ~recipe [for|of] {0}; ~I want to cook {0}[|, any recipe]; how to cook {0}; what do I need to [make|cook] {0}; ~{0} recipe; any [good |]recipes for {0}
show me how to [cook|make|prepare] {0}; tell me how to [cook|make] {0}; show me a {0} recipe; search [for |]a recipe for {0}; look up a recipe for {0}; look up how to prepare {0}; find recipes for {0}; find a good {0} recipe; get me a good recipe for {0}; give me the recipe of {0}; get the ingredients for {0}; give me the ingredients of {0}; ~ingredients for {0}; ~recipe: {0}; ~recipe please, {0}
how do you cook {0}; how can I [prepare|cook] {0}; how is {0} [cooked|prepared]; how to prepare {0}; how long do I cook {0}; how long must {0} cook; what ingredients do I need for {0}; which ingredients go into {0}; what goes into {0} when I cook it; is there a [good |]recipe for {0}; do you have a recipe for {0}; do you know a [good |]recipe for {0}; what is a good recipe for {0}; what is the recipe for {0}
~[can|could] you find a recipe for {0}; ~can you show me how to cook {0}; ~could you look up recipes for {0}; ~I'd like to [make|cook] {0}, how; ~I want to prepare {0}, show me how; ~I need a recipe for {0}; ~I am cooking {0}, which ingredients do I need; ~I am looking for a {0} recipe; ~tonight I cook {0}, find a recipe; ~we are cooking {0} today, recipe please; ~cooking {0}, how; help me cook {0}; help me prepare {0}; teach me to cook {0}; teach me how to make {0}; ~steps to cook {0}; give me the steps for cooking {0}
search the recipes for {0}; search recipes for {0}; search for {0} recipes; how long does it take to cook {0}; how long do I need to cook {0}; what are the steps to cook {0}; which steps do I need to make {0}

food: order_pizza pizza order_a_pizza
Order a pizza[.|]; Pizza delivery; Order a pizza of a size with a topping; Deliver [a small, medium or large pizza|a pizza]
size:size topping/toppings/kind:word
order [me |]a {0} pizza with {1}; ~I want a {0} pizza with {1}; get [me |us |]a {0} {1} pizza; ~a {0} pizza with {1}, please; ~one {0} {1} pizza; can I [get|have] a {0} pizza with {1}; ~pizza, {0}, with {1}; ~{0} pizza with {1}
order [me |us |]a {0} {1} pizza; order one {0} pizza with {1}; order a pizza with {1}, size {0}; order a pizza, {0}, topping {1}; order a {0} pizza and put {1} on it; order a pizza with {1} in {0}; get [me |us |]a {0} pizza with {1}; get me one {0} pizza topped with {1}; get a pizza with {1} on top, {0}; ~pizza with {1}, {0}; ~pizza: {0}, {1}; ~pizza order: {0}, {1}; ~{0} {1} pizza, please; ~one {0} pizza with {1}, please
~[can|could] you order a {0} pizza with {1}; ~can you get me a {0} {1} pizza; ~could I have a {0} pizza with {1}; can we have one {0} {1} pizza; can I order a {0} pizza with {1}; ~I'd like a {0} pizza with {1}; ~I would like to order a {0} {1} pizza; ~I am hungry, order a {0} pizza with {1}; ~we are hungry, get us a {0} pizza with {1}; ~we want a {0} {1} pizza; ~I need a {0} pizza topped with {1}; ~I feel like a {0} pizza with {1}; ~I'll have a {0} pizza with {1}; ~I'll take one {0} {1} pizza; ~have a {0} pizza with {1} delivered; let them deliver a {0} pizza with {1}; deliver a {0} {1} pizza; bring me a {0} pizza with {1}; ~a {0} pizza, topping: {1}; ~size {0}, topping {1}, one pizza please; make it a {0} pizza with {1} on top
~I'd like a {0} pizza topped with {1}; ~a {0} pizza topped with {1}; ~I will take a {0} pizza with {1}; ~we take a {0} {1} pizza; ~we'll take one {0} pizza with {1}; ~we'll have a {0} pizza with {1}; ~today we'll order a {0} {1} pizza; ~we want a {0} pizza with {1} today; ~today's order is a {0} {1} pizza; ~today I want a {0} pizza with {1}

food: order_food order_item buy_item order place_order
[Order|Buy] [food|something|an item|a product][.|]; Place an order; Purchase a number of [items|products]; Order a quantity of a product
item/product/name:product quantity/count/amount:small
order {1} {0}; buy {1} {0}; ~I [want|'d like|would like] to order {1} {0}; [get|order] me {1} {0}; ~I would like {1} {0}; place an order for {1} {0}; purchase {1} [pieces|items] of {0}; can I [get|have|order] {1} {0}
~order: {1} {0}; ~{1} {0} to order; ~my order is {1} {0}; ~my order: {1} {0}; ~an order of {1} {0}; order us {1} {0}; order {1} of the {0}; order {0}, quantity {1}; order the product {0}, {1} pieces; order {1} pieces of {0}; buy me {1} {0}; buy {1} pieces of {0}; buy {0}, {1} pieces; get us {1} {0}; purchase {0}, quantity {1}; place an order of {1} {0}; place an order: {1} {0}
~[can|could] you order {1} {0}; ~can you buy {1} {0}; ~could you get me {1} {0}; ~would you purchase {1} {0}; ~could I have {1} {0}; can we order {1} {0}; ~I want to buy {1} {0}; ~I want to purchase {1} {0}; ~I'd like {1} {0}; ~I need {1} {0}, please order them; ~we need {1} {0}, order them; ~I'll take {1} {0}; ~I'll have {1} {0}; ~we would like {1} {0}; ~we'll take {1} {0}; let me have {1} {0}; let me order {1} {0}; make an order for {1} {0}; give me {1} {0}; ~I wish to order {1} {0}; ~I wish to buy {1} {0}; ~put in an order for {1} {0}

food: get_calories calories nutrition food_info
Get the calories of a food[.|]; Nutrition [data|facts]; How healthy a food is and what is in it; Fat, sugar and protein of a food
food/item/name:product
how many calories [are|are there] in {0}; [what are|show|get] the calories of {0}; ~calories in {0}; is {0} [healthy|unhealthy]; ~nutrition facts for {0}; what does {0} contain, fat or sugar; how much [fat|sugar|protein] is in {0}
how many calories does {0} have; how many calories do I get from {0}; how healthy is {0}; how much [protein|sugar|fat] does {0} have; how much sugar does {0} contain; what are the nutrition facts of {0}; what nutrition does {0} have; what is the calorie count of {0}; what is in {0}, how many calories; does {0} have many calories; does {0} contain [sugar|fat|protein]; is there [much |]sugar in {0}; is there [much |]fat in {0}; is {0} healthy to eat; is {0} good for my diet
~calories of {0}; ~calories: {0}; ~{0} calories; ~{0}, how many calories; ~{0} nutrition; ~nutrition of {0}; ~nutrition data of {0}; ~calorie count of {0}; ~fat and sugar in {0}; ~protein in {0}; show me the nutrition [facts|data] for {0}; give me the calories of {0}; give me the nutrition facts for {0}; tell me the calories in {0}; look up the calories of {0}; check the calories in {0}; check how healthy {0} is; count the calories in {0}; ~[can|could] you tell me the calories in {0}; ~can you check the nutrition facts of {0}; ~I ate {0}, how many calories is that; ~I want to eat {0}, how many calories does it have; ~I am on a diet, is {0} healthy; ~I want to know the calories of {0}; may I eat {0} on a diet
~the calorie count for {0}; what is the calorie count for {0}; how high is the calorie count of {0}
""")
